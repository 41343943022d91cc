"""Tables that are in memory already: data frames and dictionaries of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit.data.table_file import Table
from tacit.data.values import cell_text
from tacit.errors import ArgumentError

NAME = "the given table"


def table_of(frame: Any) -> Table:
    """A pandas or polars data frame, or a dictionary from names to columns of equal length, as a ``Table``.

    Cells become the text that a CSV file would hold, so that a frame and a file of the same rows are read alike.
    """
    if isinstance(frame, Table):
        return frame
    names = list(frame) if isinstance(frame, Mapping) else list(getattr(frame, "columns", ()))
    if not names or not hasattr(frame, "__getitem__"):
        raise ArgumentError(
            f"A table is a file, a data frame or a dictionary of columns with at least one; got a "
            f"{type(frame).__name__}."
        )
    columns: dict[str, list[str]] = {}
    for name in names:
        if str(name) in columns:
            raise ArgumentError(f"The table has two columns called {str(name)!r}; rename one.")
        columns[str(name)] = _texts(str(name), frame[name])
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) > 1:
        raise ArgumentError(f"The columns of the table have different lengths: {sorted(lengths)[:4]}.")
    return Table(NAME, columns, lengths.pop(), 1)


def _texts(name: str, values: Any) -> list[str]:
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise ArgumentError(
            f"Column {name!r} must be a list of values, one per row, got a {type(values).__name__}."
        )
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ArgumentError(f"Column {name!r} has {values.ndim} dimensions instead of one.")
    # pandas and numpy have tolist, polars has to_list.
    convert = getattr(values, "tolist", None) or getattr(values, "to_list", None)
    cells = list(values) if convert is None else convert()
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        cells = [str(cell) for cell in values]
    kinds = set(map(type, cells))
    if kinds == {float}:
        return list(map(repr, cells))
    if kinds == {int}:
        return list(map(str, cells))
    return list(map(cell_text, cells))
