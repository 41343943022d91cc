"""``tacit predict``: a trained model on new data."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options
from tacit.cli.output import examples, print_json
from tacit.errors import ArgumentError, FileError
from tacit.files import write_atomically, write_text
from tacit.name_lists import spelled
from tacit.waiting import progress_shown

if TYPE_CHECKING:
    from tacit.jobs.prediction import Predictions, Predictor

PREDICT_EXAMPLE = examples(
    "tacit predict runs/diabetes new.csv --out scores.csv",
    "tacit predict model.tacit new.xlsx --keep patient_id --out scores.csv",
    "tacit predict runs/photos inbox/ --out scores.csv",
    "tacit predict runs/diabetes -",
)
_STDIN = "-"
_PARQUET = (".parquet", ".pq")


def predict(
    run: Annotated[
        Path, typer.Argument(help="A finished run, or a file of tacit export.", show_default=False)
    ],
    source: Annotated[
        str,
        typer.Argument(
            help="New data: a CSV, Parquet or Excel file, a folder of images, a file of texts; - reads stdin.",
            metavar="SOURCE",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="CSV or Parquet file to write. (default: CSV to stdout)")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="Column of SOURCE to copy to the result; repeatable.")
    ] = None,
    separator: Annotated[str | None, typer.Option("--separator", help="Separator of a CSV file.")] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Encoding of a CSV file. (default: utf-8)")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict for new data with a trained model: one row of answers per row, in the same order.

    Needs neither the training data nor the column that is predicted, and spends nothing. Categories, columns and values
    that the model does not know are counted per column on stderr, and never stop it.

    A row has the predicted class or value, for two classes the score (a logit), and the probability of each class.
    """
    if out is not None and out.exists():
        raise FileError(f"{out} already exists; choose another --out or delete it.")
    from tacit.jobs.prediction import load  # PyTorch takes seconds to load

    predictor = load(run)
    data = _data(predictor, source, separator, encoding)
    with progress_shown(not as_json):
        found = predictor.predict(data, separator=separator, encoding=encoding)
    kept, answers = _kept(data, keep or ()), found.columns()
    if twice := kept.keys() & answers.keys():
        raise ArgumentError(
            f"--keep {min(twice)}: the result has a column of that name; rename it in {source}."
        )
    # What has no answer has none in any column: not a number beside an empty class.
    answers = {
        name: [None if value != value else value for value in values] for name, values in answers.items()
    }
    columns = {**kept, **answers}
    if out is not None:
        _write(columns, out)
    if as_json:
        print_json(_record(run, found, columns, out))
        return
    if out is None:
        text = _csv(columns)
        sys.stdout.write(spelled(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    for remark in found.remarks:
        print(spelled(remark), file=sys.stderr)
    if unread := sum(value is None or value == "" for value in columns["prediction"]):
        which = (
            "1 file is no readable image and has"
            if unread == 1
            else f"{unread:,} files are no readable images and have"
        )
        print(f"{which} no prediction.", file=sys.stderr)
    if out is not None:
        print(spelled(f"Written: {out} ({len(found):,} rows)"), file=sys.stderr)


def _data(predictor: Predictor, source: str, separator: str | None, encoding: str | None) -> Any:
    """What to predict for; a table is read here, because its columns may be asked for again."""
    from tacit.jobs.new_texts import is_table_of_texts

    if source == _STDIN:
        try:
            content = sys.stdin.buffer.read().decode(encoding or "utf-8-sig")
        except (UnicodeError, LookupError) as error:
            raise FileError(f"The text on stdin is not {encoding or 'UTF-8'}: {error}.") from error
        if predictor.inputs.of_texts:
            return content.splitlines()
        if predictor.schema is None:
            raise ArgumentError(
                "Only rows of a table and texts can be read from stdin; name a file or folder."
            )
        from tacit.data.table_file import parse_text

        return parse_text("stdin", content, separator)
    if predictor.schema is not None or is_table_of_texts(source, predictor.inputs):
        if Path(source).is_dir():
            raise FileError(f"{source} is a folder; this model takes a table: a CSV, Parquet or Excel file.")
        from tacit.data.table_file import read_columns

        return read_columns(source, separator=separator, encoding=encoding)
    return source


def _kept(data: Any, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    from tacit.data.table_file import Table

    if names and not isinstance(data, Table):
        raise ArgumentError("--keep copies columns of a table; this data has none.")
    return {name: data.column(name) for name in names}


def _rows(columns: dict[str, Sequence[Any]]) -> list[list[Any]]:
    return [list(row) for row in zip(*columns.values(), strict=True)]


def _csv(columns: dict[str, Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _write(columns: dict[str, Sequence[Any]], out: Path) -> None:
    if out.suffix.lower() not in _PARQUET:
        write_text(out, _csv(columns))
        return
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FileError("Writing Parquet needs pyarrow: run pip install 'tacit-dp[data]'.") from error
    table = pyarrow.table({name: list(values) for name, values in columns.items()})
    write_atomically(out, lambda place: pyarrow.parquet.write_table(table, place))


def _record(
    run: Path, found: Predictions, columns: dict[str, Sequence[Any]], out: Path | None
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "run": str(run),
        "rows": len(found),
        "kind": found.kind,
        "classes": list(found.classes),
        "columns": [asdict(report) for report in found.reports],
        "ignored": list(found.ignored),
        "warnings": found.remarks,
        "out": None if out is None else str(out),
    }
    if out is None:
        record["predictions"] = [dict(zip(columns, row, strict=True)) for row in _rows(columns)]
    return record
