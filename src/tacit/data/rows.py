"""Rows in memory, arrays and data frames, as a ``Table``: the cells are the texts that a CSV file would hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.schema import Column, Date, Number, Schema
from tacit.data.table_file import Table
from tacit.data.values import is_missing, parse_date, parse_numbers
from tacit.errors import ArgumentError
from tacit.name_lists import listed


def is_frame(rows: object) -> bool:
    """Whether ``rows`` is a data frame (pandas, Polars): columns by name, each with its own type."""
    return hasattr(rows, "columns") and hasattr(rows, "dtypes")


def table_of(rows: Any, names: Sequence[str] | None = None) -> Table:
    """The cells of a data frame or of a matrix. ``names`` are those of the columns; x0, x1, ... unless given.

    Numbers are written so that reading them gives the same number; not a number, ``None`` and the like are missing.
    """
    columns = _frame_columns(rows) if is_frame(rows) else list(np.asarray(rows).T)
    names = [f"x{place}" for place in range(len(columns))] if names is None else list(names)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ArgumentError(f"Two columns are called {listed(repeated)}; rename one.")
    cells = {name: texts(column, name) for name, column in zip(names, columns, strict=True)}
    return Table("the given rows", cells, len(rows), 0)


def readable(table: Table, schema: Schema) -> tuple[Table, list[str]]:
    """``table`` with cells that ``schema`` cannot read as missing, and the columns that had some.

    A model in use meets words among numbers that its training rows did not hold, and must answer all the same.
    """
    columns, unread = dict(table.columns), []
    for name, column in schema.columns.items():
        cells = table.column(name)
        odd = {cell for cell in set(cells) if not _reads(cell, column)}
        if odd:
            unread.append(name)
            columns[name] = ["" if cell in odd else cell for cell in cells]
    return replace(table, columns=columns), unread


def _reads(cell: str, column: Column) -> bool:
    if isinstance(column, Number):
        try:
            parse_numbers([cell], column.missing_values, column.decimal)
        except ValueError:
            return False
    if isinstance(column, Date):
        return is_missing(cell) or parse_date(cell, column.format) is not None
    return True


def _frame_columns(frame: Any) -> list[Any]:
    if hasattr(frame, "iloc"):
        return [frame.iloc[:, place] for place in range(len(frame.columns))]
    return [frame[name] for name in frame.columns]


def texts(values: Any, name: str) -> list[str]:
    """The cells of one column as texts; equal ones share a text. ``name`` is for messages."""
    plain = getattr(values, "dtype", None)
    if isinstance(plain, np.dtype) and plain.kind in "fiu":
        return _number_texts(np.asarray(values), name)
    return list(_texts(values.tolist() if hasattr(values, "tolist") else list(values), name))


def _number_texts(values: NDArray[Any], name: str) -> list[str]:
    different, places = np.unique(values, return_inverse=True)
    written = [_number_text(value, name) for value in different.tolist()]
    return [written[place] for place in places.tolist()]


def _texts(values: Iterable[object], name: str) -> Iterable[str]:
    known: dict[tuple[type, object], str] = {}
    for value in values:
        key = (type(value), value if isinstance(value, Hashable) else None)
        if key not in known:
            known[key] = _text(value, name)
        yield known[key]


def _text(value: Any, name: str) -> str:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | date):  # a time stamp is a date too
        return str(value)
    if isinstance(value, Real):
        return _number_text(value, name)
    raise TypeError(f"Column {name!r} holds {value!r}; an argument must be a string or a number.")


def _number_text(value: Any, name: str) -> str:
    if math.isnan(value):
        return ""
    if math.isinf(value):
        raise ArgumentError(
            f"Column {name!r} holds infinity, which is no number to learn from; mark it as missing."
        )
    return str(value) if isinstance(value, int) else repr(float(value))
