"""New rows for a trained model: what its schema does not know is counted column by column, and never stops it.

Training refuses a cell that it cannot read, because somebody can still fix it. Whoever asks for a prediction needs
one: a cell that cannot be read counts as missing, a number outside its range as the nearer end, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.data.schema import Category, Column, Date, Number, Schema, Skip
from tacit.data.table_file import Table
from tacit.data.values import Cells, composed, is_missing, normal_value, parse_date, parse_numbers


@dataclass(frozen=True)
class ColumnReport:
    """How many rows of a column hold what.

    name:       the column.
    absent:     whether the table does not have the column; all its values then count as missing.
    missing:    rows without a value.
    unexpected: whether training knew no missing values; they then count as nothing in particular.
    unreadable: rows whose cell is no number, or no date of the schema's format; they count as missing.
    unknown:    rows with a category that the schema does not have; they count as missing.
    below:      rows below the public range; they count as its low end.
    above:      rows above it; they count as its high end.
    """

    name: str
    absent: bool = False
    missing: int = 0
    unexpected: bool = False
    unreadable: int = 0
    unknown: int = 0
    below: int = 0
    above: int = 0

    @property
    def remarkable(self) -> bool:
        """Whether a person should hear of it: anything but missing values that training knew too."""
        counted = self.unreadable or self.unknown or self.below or self.above
        return bool(self.absent or counted or (self.missing and self.unexpected))

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        known = " The model knows no missing values there." if self.unexpected else ""
        if self.absent:
            return f"Column {self.name!r} is not in the data: its values count as missing.{known}"
        parts = [
            f"{count:,} {what}"
            for count, what in (
                (self.missing if self.unexpected else 0, "missing"),
                (self.unreadable, "unreadable, which count as missing"),
                (self.unknown, "of an unknown category, which count as missing"),
                (self.below, "below the range, which count as its low end"),
                (self.above, "above the range, which count as its high end"),
            )
            if count
        ]
        gaps = known if self.missing or self.unreadable or self.unknown else ""
        return f"Column {self.name!r}: {'; '.join(parts)}.{gaps}"


@dataclass(frozen=True)
class Tolerated:
    """A table that can be encoded with a schema, and what was found in it.

    ``ignored`` are columns that the model does not use.
    """

    table: Table
    reports: tuple[ColumnReport, ...]
    ignored: tuple[str, ...]


def tolerate(table: Table, schema: Schema) -> Tolerated:
    """``table`` with the columns of ``schema``, every cell readable, and a report on each column."""
    columns: dict[str, Cells] = {}
    reports = []
    spelled = {composed(name): name for name in table.columns}
    used: set[str | None] = set()
    nothing = Cells([""], np.zeros(table.rows, dtype=np.int64))
    for name, column in schema.columns.items():
        there = name if name in table.columns else spelled.get(composed(name))
        used.add(there)
        if isinstance(column, Skip):
            columns[name] = nothing
        elif there is None:
            columns[name] = nothing
            reports.append(
                ColumnReport(name, absent=True, missing=table.rows, unexpected=_unexpected(column))
            )
        else:
            columns[name], report = _column(name, column, table.column(there))
            reports.append(report)
    ignored = tuple(
        name for name in table.columns if name not in used and composed(name) != composed(schema.target.name)
    )
    return Tolerated(Table(table.path, columns, table.rows, table.first_line), tuple(reports), ignored)


def _unexpected(column: Column) -> bool:
    return not getattr(column, "missing", True)


def _column(name: str, column: Column, cells: Cells) -> tuple[Cells, ColumnReport]:
    """The cells, with those that cannot be read as missing. Every different text is looked at once."""
    counts = cells.counts()
    judged = np.array(
        _numbers(cells.values, column)
        if isinstance(column, Number)
        else [_judged(cell, column) for cell in cells.values]
    )
    found = {
        word: int(counts[judged == word].sum())
        for word in ("missing", "unreadable", "unknown", "below", "above")
    }
    if found["unreadable"]:
        bad = {cell for cell, word in zip(cells.values, judged, strict=True) if word == "unreadable"}
        cells = cells.mapped(lambda cell: "" if cell in bad else cell)
    return cells, ColumnReport(name, False, unexpected=_unexpected(column), **found)


def _numbers(values: list[str], column: Number) -> NDArray[np.str_]:
    """What is odd about each of the texts of a column of numbers."""
    bad = np.zeros(len(values), dtype=np.bool_)
    try:
        numbers = parse_numbers(values, column.missing_values, column.decimal)
    except ValueError:
        bad = np.array([not _is_number(value, column) for value in values])
        kept = ["" if odd else value for value, odd in zip(values, bad.tolist(), strict=True)]
        numbers = parse_numbers(kept, column.missing_values, column.decimal)
    words = np.where(np.isnan(numbers), "missing", "")
    words = np.where(numbers < column.low, "below", np.where(numbers > column.high, "above", words))
    return np.where(bad, "unreadable", words)


def _is_number(cell: str, column: Number) -> bool:
    try:
        parse_numbers([cell], column.missing_values, column.decimal)
    except ValueError:
        return False
    return True


def _judged(cell: str, column: Column) -> str:
    """What is odd about a cell, as a field of the report; empty for one that is as the schema says."""
    if is_missing(cell):
        return "missing"
    if isinstance(column, Category):
        # Values that share features are unknown by design.
        return "" if column.others or normal_value(cell) in _known(column) else "unknown"
    if isinstance(column, Date):
        day = parse_date(cell, column.format)
        return (
            "unreadable"
            if day is None
            else "below"
            if day < column.low
            else "above"
            if day > column.high
            else ""
        )
    return ""


@lru_cache(maxsize=256)
def _known(column: Category) -> frozenset[str]:
    return frozenset(map(normal_value, column.values))
