"""Rows that stay in their Parquet files: a data set that reads the rows of many steps in one pass.

A Poisson sample of a large table touches nearly every row group, and a row group is decoded whole; read step by step,
every step would be a pass over all files. Which rows a step takes depends on no row, so it can be drawn long before.
``gather`` therefore takes the positions of as many steps as fit into ``memory`` bytes and reads every row group that
holds one of them once. What it keeps of a row is compact: four bytes per column, and texts once each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tacit.data.encode import encode, number_features, to_unit
from tacit.data.row_groups import Positions, RowGroups
from tacit.data.schema import Category, Column, Number, Schema, Skip, Target, Text
from tacit.data.table_file import Table, cells_of
from tacit.data.tolerance import tolerate
from tacit.data.values import Cells, normal_value, parse_number, parse_numbers
from tacit.errors import FileError

MEMORY = 512 << 20
"""Bytes of rows that are held at once, unless said otherwise."""

LOOKED_AT = 64
"""Single rows that are kept: a look at how batches are made asks for the same few again and again."""

_DRAWN = 40
"""Bytes per row that drawing and ordering the positions takes."""
_TEXT = 150
"""Bytes that Python adds to every text that is there once."""


class StoredRows(Dataset[tuple[Tensor, Tensor]]):
    """The rows of ``groups``, encoded by ``schema`` when they are read.

    A row without a target takes part in no batch. A cell that cannot be read counts as missing: an error would tell of
    one row. Both depend on that row alone.
    """

    def __init__(self, groups: RowGroups, schema: Schema, memory: int = MEMORY) -> None:
        self.groups, self.schema = groups, schema
        self._used = {name: column for name, column in schema.columns.items() if not isinstance(column, Skip)}
        for name, column in (*self._used.items(), (schema.target.name, schema.target)):
            _check_type(name, column, groups)
        per_row = _DRAWN + sum(_bytes(name, column, groups) for name, column in self._used.items())
        self.rows_ahead = max(1, int(memory / per_row))
        self._looked_at: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return self.groups.rows

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Single rows, to be looked at; one without a target has the label 0 here, and is in no batch."""
        new = [position for position in dict.fromkeys(positions) if position not in self._looked_at]
        if new:
            held = self._held(np.array(new, dtype=np.int64))
            x, y = held.features(slice(None)), held.labels(slice(None))
            known = torch.nan_to_num(y) if y.is_floating_point() else y.clamp(min=0)
            kept = list(self._looked_at.items())[-LOOKED_AT:]
            self._looked_at = {**dict(kept), **dict(zip(new, zip(x, known, strict=True), strict=True))}
        if any(
            position not in self._looked_at for position in positions
        ):  # more were asked for than are kept
            self._looked_at = {}
            return self.__getitems__(positions)
        return [(x.clone(), y.clone()) for x, y in map(self._looked_at.__getitem__, positions)]

    def gather(self, positions: Positions) -> Callable[[int, int], tuple[Tensor, Tensor] | None]:
        """Read the rows at ``positions``. The answer makes the batch of those from one place to another, if any.

        Positions may come in any order and more than once.
        """
        held = self._held(positions)

        def batch(start: int, stop: int) -> tuple[Tensor, Tensor] | None:
            y = held.labels(slice(start, stop))
            x = held.features(slice(start, stop))
            known = ~torch.isnan(y).any(1) if y.is_floating_point() else y >= 0
            if known.all():
                return x, y
            return (x[known], y[known]) if known.any() else None

        return batch

    def digest(self) -> str:
        """Of the names of files, their row groups and the schema; of no row."""
        return f"{self.groups.digest()} {self.schema}"

    def _held(self, positions: Positions) -> _Held:
        target = self.schema.target
        columns = {name: _Compact.of(column, len(positions)) for name, column in self._used.items()}
        labels = np.empty(len(positions), dtype=np.float32 if target.kind == "regression" else np.int32)
        order = np.argsort(positions, kind="stable")
        for part, table in self.groups.read(positions[order], [*self._used, target.name]):
            places = order[part]
            labels[places] = _labels(table.column(target.name), target)
            for name, compact in columns.items():
                compact.put(places, name, table.column(name))
        return _Held(self.schema, columns, {n: list(c.texts) for n, c in columns.items()}, labels)


@dataclass
class _Compact:
    """One column of the rows that are held: numbers on their encoded scale, or which of ``texts`` each row has."""

    column: Column
    values: NDArray[Any]
    texts: dict[str, int]

    @classmethod
    def of(cls, column: Column, rows: int) -> _Compact:
        return cls(column, np.empty(rows, np.float32 if isinstance(column, Number) else np.int32), {})

    def put(self, places: Positions, name: str, read: Any) -> None:
        if isinstance(self.column, Number):
            self.values[places] = number_features(_numbers(name, self.column, read), self.column)
            return
        cells = cells_of(read, tolerant=True)
        codes = [self.texts.setdefault(text, len(self.texts)) for text in cells.values]
        self.values[places] = np.array(codes, dtype=np.int32)[cells.codes]


@dataclass
class _Held:
    schema: Schema
    columns: dict[str, _Compact]
    texts: dict[str, list[str]]
    raw_labels: NDArray[Any]

    def features(self, part: slice) -> Tensor:
        ready: dict[str, NDArray[np.float32]] = {}
        texts: dict[str, Cells] = {}
        rows = len(self.raw_labels[part])
        for name, compact in self.columns.items():
            if isinstance(compact.column, Number):
                ready[name] = compact.values[part].copy()
                continue
            kept, codes = np.unique(compact.values[part], return_inverse=True)
            texts[name] = Cells([self.texts[name][place] for place in kept.tolist()], codes.astype(np.int64))
        columns = {name: column for name, column in self.schema.columns.items() if name not in ready}
        unread = Table("the folder", texts, rows, 1)
        table = tolerate(unread, Schema(self.schema.target, columns)).table
        return torch.from_numpy(encode(table, self.schema, ready).x)

    def labels(self, part: slice) -> Tensor:
        found = torch.from_numpy(self.raw_labels[part].copy())
        match self.schema.target.kind:
            case "regression":
                return found[:, None]
            case "binary":
                return torch.where(found < 0, torch.nan, found.float())[:, None]
        return found.long()


def _numbers(name: str, column: Number | None, read: Any) -> NDArray[np.float64]:
    """The numbers of a column from Arrow; what is missing, marked as missing, or no finite number is NaN."""
    import pyarrow
    from pyarrow import types

    codes = () if column is None else column.missing_values
    if types.is_integer(read.type) or types.is_floating(read.type) or types.is_decimal(read.type):
        values = np.array(read.cast(pyarrow.float64(), safe=False).to_numpy())
        values[~np.isfinite(values)] = np.nan
        marks = [number for code in codes if not np.isnan(number := parse_number(normal_value(code)))]
        if marks:
            values[np.isin(values, marks)] = np.nan
        return values
    column = column or Number(0, 1)
    table = Table("the folder", {name: cells_of(read, tolerant=True)}, len(read), 1)
    readable = tolerate(table, Schema(_ANY_TARGET, {name: column})).table.column(name)
    return parse_numbers(readable, column.missing_values, column.decimal)


_ANY_TARGET = Target("", "regression", low=0, high=1)


def _labels(read: Any, target: Target) -> NDArray[Any]:
    """Labels of a column from Arrow: NaN, or -1 for classes, where there is none."""
    if target.kind == "regression":
        return to_unit(_numbers(target.name, None, read), *target.range).astype(np.float32)
    known = {normal_value(value): label for label, value in enumerate(target.classes)}
    cells = cells_of(read, tolerant=True)
    return np.array([known.get(normal_value(text), -1) for text in cells.values], np.int32)[cells.codes]


def _check_type(name: str, column: Column | Target, groups: RowGroups) -> None:
    from pyarrow import types

    held = groups.types[name]
    plain = held.value_type if types.is_dictionary(held) else held
    number = types.is_integer(plain) or types.is_floating(plain) or types.is_decimal(plain)
    text = types.is_string(plain) or types.is_large_string(plain)
    if isinstance(column, Number) or (isinstance(column, Target) and column.kind == "regression"):
        fits = number or text
    else:
        fits = number or text or types.is_boolean(plain) or types.is_date(plain) or types.is_timestamp(plain)
    if not fits:
        raise FileError(
            f"Column {name!r} of {groups.files[0]} holds {held} values, which the schema's type for it cannot read; "
            "skip the column, or write it as text."
        )


def _bytes(name: str, column: Column, groups: RowGroups) -> float:
    """About how many bytes a row's value of a column takes while it is held."""
    if isinstance(column, Text) or (isinstance(column, Category) and column.others):
        return 4 + _TEXT + groups.text_bytes[name]
    return 4
