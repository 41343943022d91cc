"""Tables that are in memory already: data frames, dictionaries of columns, matrices.

Cells become the texts that a CSV file would hold, so that a frame and a file of the same rows are read alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from numbers import Real
from typing import Any

import numpy as np

from tacit.data.table_file import Table
from tacit.data.values import cell_text
from tacit.errors import ArgumentError

NAME = "the given table"


def is_frame(rows: object) -> bool:
    """Whether ``rows`` is a data frame (pandas, Polars): columns by name, each with its own type."""
    return hasattr(rows, "columns") and hasattr(rows, "dtypes")


def table_of(rows: Any, names: Sequence[str] | None = None, *, strict: bool = False) -> Table:
    """A pandas or polars data frame, a dictionary from names to columns of equal length, or a matrix, as a ``Table``.

    ``names`` are those of the columns, where they are not the frame's own; x0, x1, ... for a matrix. With ``strict``
    infinities and values that are neither texts, numbers nor days are refused: such rows are to be learnt from.
    """
    if isinstance(rows, Table):
        return rows
    found, columns = _columns(rows)
    names = found if names is None else list(names)
    if not names:
        raise ArgumentError(
            f"A table is a file, a data frame or a dictionary of columns with at least one; got a "
            f"{type(rows).__name__}."
        )
    cells: dict[str, list[str]] = {}
    for name, column in zip(names, columns, strict=True):
        if name in cells:
            raise ArgumentError(f"The table has two columns called {name!r}; rename one.")
        cells[name] = texts(column, name, strict=strict)
    lengths = {len(column) for column in cells.values()}
    if len(lengths) > 1:
        raise ArgumentError(f"The columns of the table have different lengths: {sorted(lengths)[:4]}.")
    return Table(NAME, cells, lengths.pop(), 1)


def _columns(rows: Any) -> tuple[list[str], list[Any]]:
    """The columns and what they are called."""
    if isinstance(rows, Mapping):
        return [str(name) for name in rows], list(rows.values())
    if is_frame(rows):
        names = list(rows.columns)
        # By place, because two columns may have one name, which is refused later.
        by_place = hasattr(rows, "iloc")
        return [str(name) for name in names], [
            rows.iloc[:, place] if by_place else rows[name] for place, name in enumerate(names)
        ]
    if isinstance(rows, np.ndarray) and rows.ndim == 2:
        return [f"x{place}" for place in range(rows.shape[1])], list(rows.T)
    return [], []


def texts(values: Any, name: str, *, strict: bool = False) -> list[str]:
    """The cells of one column as texts. ``name`` is for messages, ``strict`` as for ``table_of``."""
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
    if strict:
        _check_cells(cells, kinds, name)
    if kinds == {float}:
        return list(map(repr, cells))
    if kinds == {int}:
        return list(map(str, cells))
    return list(map(cell_text, cells))


def _check_cells(cells: Sequence[Any], kinds: set[type], name: str) -> None:
    for kind in kinds:
        known = issubclass(kind, str | date | Real | np.bool_ | type(None))
        if not known and kind.__name__ not in ("NAType", "NaTType"):
            odd = next(cell for cell in cells if type(cell) is kind)
            raise TypeError(f"Column {name!r} holds {odd!r}; an argument must be a string or a number.")
    if any(issubclass(kind, float) for kind in kinds) and any(
        isinstance(cell, float) and math.isinf(cell) for cell in cells
    ):
        raise ArgumentError(
            f"Column {name!r} holds infinity, which is no number to learn from; mark it as missing."
        )
