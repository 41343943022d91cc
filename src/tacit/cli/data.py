"""``tacit data``: which data sets there are, what is in one, and a schema to start from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, examples, print_figures, print_json
from tacit.name_lists import shortened

app = typer.Typer(help="Data sets and schemas.", no_args_is_help=True)

ABOUT = {
    "nhanes": ("8,362 people of a US health survey; diabetes", "comes with Tacit"),
    "digits": ("1,797 handwritten digits, 8 × 8", "scikit-learn"),
    "mnist": ("70,000 handwritten digits, 28 × 28", "data directory or download"),
    "fmnist": ("70,000 pieces of clothing, 28 × 28", "data directory or download"),
    "cifar10": ("60,000 photographs, 32 × 32", "data directory or download"),
    "pneumoniamnist": ("5,332 chest X-rays, 28 × 28", "data directory or download"),
    "aptos": ("3,662 retina photographs; grade of retinopathy", "data directory"),
    "aptos-any": ("3,662 retina photographs; any retinopathy", "data directory"),
    "adult": ("48,842 census records; income", "data directory or download"),
    "bank": ("45,211 calls of a bank; subscribed", "data directory or download"),
    "kdd99": ("494,021 network connections; attack", "data directory or download"),
    "sst2": ("68,221 phrases of film reviews; sentiment", "data directory or download"),
}


@app.command(name="list", epilog=examples("tacit data list"))
def list_(as_json: options.AsJson = False) -> None:
    """List the built-in data sets."""
    if as_json:
        print_json([{"name": name, "what": what, "where": where} for name, (what, where) in ABOUT.items()])
        return
    table = Table("name", "what", "where from")
    for name, (what, where) in ABOUT.items():
        table.add_row(name, what, where)
    console().print(table)


@app.command(epilog=examples("tacit data show nhanes", "tacit data show customers.csv --target churn"))
@options.job_options(options.offer("data", but=("task", "tokenizer", "public")))
def show(settings: options.Settings, as_json: options.AsJson = False) -> None:
    """Show what Tacit makes of a data set: sizes, features, public facts, what ε does not cover."""
    from tacit.jobs.problem import load_problem

    problem = load_problem(options.experiment_from(settings).data)
    record: dict[str, Any] = {
        "name": problem.name,
        "kind": problem.kind,
        "training": problem.examples,
        "held_out": None if problem.held_out is None else len(problem.held_out),  # type: ignore[arg-type]
    }
    if problem.task is not None:
        record |= {
            "input_shape": list(problem.task.input_shape),
            "classes": list(problem.task.classes),
            "features": list(problem.task.features),
            "norm_bound": problem.task.norm_bound,
            "public_sources": list(problem.task.public_sources),
        }
    record["not_covered"] = list(problem.not_covered)
    if as_json:
        print_json(record)
        return
    rows = [(key.replace("_", " "), _shown(value)) for key, value in record.items() if value]
    print_figures(problem.name, rows)


@app.command(epilog=examples("tacit data schema customers.csv --target churn --out schema.toml"))
def schema(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)],
    target: Annotated[str, typer.Option("--target", help="Column to predict.")],
    out: Annotated[Path, typer.Option("--out", help="Schema file to write.")] = Path("schema.toml"),
    kind: Annotated[str | None, typer.Option("--kind", help="binary, multiclass or regression.")] = None,
    positive: Annotated[str | None, typer.Option("--positive", help="Value of the positive class.")] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; repeatable.")] = None,
    split_by: Annotated[
        str | None,
        typer.Option("--split-by", help="Column that only decides the split; it is not predicted from."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="Column that says whose row it is; it is not predicted from.")
    ] = None,
    separator: Annotated[str | None, typer.Option("--separator", help="Separator of a CSV file.")] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Encoding of a CSV file. (default: utf-8)")
    ] = None,
) -> None:
    """Guess a schema from a table, to be corrected and declared public by a person.

    Ranges and categories in it are read off the rows and marked so; replace them by what is publicly known.
    """
    from tacit.data import write_schema
    from tacit.data.infer import schema_of
    from tacit.data.oddities import suspicious_numbers
    from tacit.data.table_file import read_columns
    from tacit.data.task import KINDS
    from tacit.errors import ArgumentError, FileError

    if kind is not None and kind not in KINDS:
        raise ArgumentError(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if out.exists():
        raise FileError(f"{out} already exists; choose another --out or delete it.")
    besides = {"split_by": split_by, "unit": unit}
    if target in besides.values():
        raise ArgumentError(f"The target {target!r} cannot decide the split or say whose row it is.")
    left_out = dict.fromkeys([*(drop or ()), *(name for name in besides.values() if name is not None)])
    table = read_columns(file, separator=separator, encoding=encoding)
    guessed = schema_of(table, target, kind, positive, tuple(left_out))
    write_schema(guessed, out)
    reading = {"drop": drop, "separator": separator, "encoding": encoding}
    counted = "1 column" if len(guessed.columns) == 1 else f"{len(guessed.columns):,} columns"
    console().print(
        f"{out} describes {counted} and the target. Correct it, delete the marks public = false, then: "
        f"tacit train {file} --schema {out}{_said(besides | reading)}"
    )
    for warning in suspicious_numbers(table, guessed):
        console().print(f"Warning: {warning}", style="bold yellow")


def _said(options: Mapping[str, str | list[str] | None]) -> str:
    """Options that the next command needs as well, as they are typed."""
    given = [
        (name, value)
        for name, values in options.items()
        for value in ([values] if isinstance(values, str) else values or [])
    ]
    return "".join(f" --{name.replace('_', '-')} {shlex.quote(value)}" for name, value in given)


def _shown(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    most = 12
    text = [shortened(str(item)) for item in value[:most]] + (
        [f"and {len(value) - most} more"] if len(value) > most else []
    )
    return ("\n" if any(len(item) > 40 for item in text) else ", ").join(text)
