"""New rows for a trained model: what its schema does not know is counted column by column, and never stops it.

Training refuses a cell that it cannot read, because somebody can still mend it. Whoever asks for a prediction needs
one: a cell that cannot be read counts as missing, a number outside its range as the nearer end, as in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Text
from tacit.data.table_file import Table
from tacit.data.values import is_missing, normal_value, parse_date, parse_numbers


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
        known = " Training saw no missing values there." if self.unexpected else ""
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
    columns: dict[str, list[str]] = {}
    reports = []
    for name, column in schema.columns.items():
        if isinstance(column, Skip):
            columns[name] = [""] * table.rows
            continue
        cells = table.columns.get(name)
        if cells is None:
            columns[name] = [""] * table.rows
            reports.append(
                ColumnReport(name, absent=True, missing=table.rows, unexpected=_unexpected(column))
            )
            continue
        columns[name], report = _column(name, column, cells)
        reports.append(report)
    ignored = tuple(name for name in table.columns if name not in columns and name != schema.target.name)
    return Tolerated(Table(table.path, columns, table.rows, table.first_line), tuple(reports), ignored)


def _unexpected(column: Column) -> bool:
    return not getattr(column, "missing", True)


def _column(name: str, column: Column, cells: list[str]) -> tuple[list[str], ColumnReport]:
    match column:
        case Number():
            return _number(name, column, cells)
        case Category():
            counts = Counter(cells)
            known = {normal_value(value) for value in column.values}
            rest = {cell: count for cell, count in counts.items() if normal_value(cell) not in known}
            missing = sum(count for cell, count in rest.items() if is_missing(cell))
            return cells, ColumnReport(
                name,
                missing=missing,
                unexpected=_unexpected(column),
                unknown=sum(rest.values()) - missing,
            )
        case Date():
            return _date(name, column, cells)
        case Text() | Skip():
            return cells, ColumnReport(name, missing=sum(map(is_missing, cells)))


def _number(name: str, column: Number, cells: list[str]) -> tuple[list[str], ColumnReport]:
    codes, unreadable = column.missing_values, 0
    try:
        values = parse_numbers(cells, codes, column.decimal)
    except ValueError:
        bad = {cell for cell in set(cells) if not _is_number(cell, codes, column.decimal)}
        unreadable = sum(cell in bad for cell in cells)
        cells = ["" if cell in bad else cell for cell in cells]
        values = parse_numbers(cells, codes, column.decimal)
    return cells, ColumnReport(
        name,
        missing=int(np.isnan(values).sum()) - unreadable,
        unexpected=_unexpected(column),
        unreadable=unreadable,
        below=int((values < column.low).sum()),
        above=int((values > column.high).sum()),
    )


def _is_number(cell: str, codes: Sequence[str], decimal: str) -> bool:
    try:
        parse_numbers([cell], codes, decimal)
    except ValueError:
        return False
    return True


def _date(name: str, column: Date, cells: list[str]) -> tuple[list[str], ColumnReport]:
    counts = Counter(cells)
    missing = sum(count for cell, count in counts.items() if is_missing(cell))
    days = {cell: parse_date(cell, column.format) for cell in counts if not is_missing(cell)}
    bad = {cell for cell, day in days.items() if day is None}
    below = sum(counts[cell] for cell, day in days.items() if day is not None and day < column.low)
    above = sum(counts[cell] for cell, day in days.items() if day is not None and day > column.high)
    unreadable = sum(counts[cell] for cell in bad)
    if bad:
        cells = ["" if cell in bad else cell for cell in cells]
    return cells, ColumnReport(
        name,
        missing=missing,
        unexpected=_unexpected(column),
        unreadable=unreadable,
        below=below,
        above=above,
    )
