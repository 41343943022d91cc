"""Turning a table into a matrix with a schema.

Each column of the table becomes features of joint Euclidean norm at most 1, hence a row of c used columns
has norm at most sqrt(c): a public bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Target, Text
from tacit.data.table_file import Table
from tacit.data.task import NumberFeature
from tacit.data.values import Cells, is_missing, normal_value, parse_date, parse_numbers, word_hash, words
from tacit.errors import FileError
from tacit.name_lists import listed

Matrix = NDArray[np.float32]
_FARTHEST = 1e15
"""Targets lie no farther from their range, so that single precision holds them."""
PARTS = 16
"""Into so many parts the range of a number is divided, for models that give each part an answer of its own."""


@dataclass(frozen=True)
class Encoded:
    """A feature matrix (rows of norm at most ``norm_bound``) and the names of its columns."""

    x: Matrix
    names: tuple[str, ...]
    norm_bound: float
    numbers: tuple[NumberFeature, ...]
    columns: int


def encode(table: Table, schema: Schema, ready: Mapping[str, Matrix] | None = None) -> Encoded:
    """Encode the columns of ``schema``; a row of the result depends on the same row of ``table`` only.

    ``ready`` holds the features of numbers that were made before, by ``number_features``; ``table`` need not hold them.
    """
    blocks: list[Matrix] = []
    names: list[str] = []
    numbers: list[NumberFeature] = []
    for name, column in schema.columns.items():
        if ready is not None and name in ready:
            assert isinstance(column, Number)
            block, parts = _with_mark(name, column, ready[name][:, None], np.isnan(ready[name]), [name])
        else:
            cells = table.column(name)
            if isinstance(column, Skip):
                continue
            block, parts = _encode_column(table, name, column, cells)
        if isinstance(column, Number):
            at = len(names)
            numbers.append(NumberFeature(at, at + 1 if column.missing else None, encoded_cuts(column)))
        blocks.append(block)
        names += parts
    if not blocks:
        raise FileError(f"No column of {table.path} is left to predict from.")
    used = len(blocks)
    return Encoded(np.concatenate(blocks, axis=1), tuple(names), math.sqrt(used), tuple(numbers), used)


def empty_table(schema: Schema) -> Table:
    """The columns of a schema without rows."""
    return Table("the schema", {name: [] for name in schema.columns}, 0, 1)


def encode_target(
    table: Table, target: Target
) -> tuple[NDArray[np.float32] | NDArray[np.int64], NDArray[np.bool_]]:
    """Return labels and a mask of the rows that have one; rows without a target are left out by the
    caller.

    A number stands where it lies in the target's range, from -1 to 1, and beyond where it lies outside: see
    ``bounded``.
    """
    cells = table.column(target.name)
    if target.kind == "regression":
        y = _numbers(table, target.name, cells, ())
        low, high = target.range
        scaled = np.clip((y - low) / (high - low) * 2 - 1, -_FARTHEST, _FARTHEST)
        return scaled.astype(np.float32)[:, None], ~np.isnan(y)
    labels = {normal_value(value): label for label, value in enumerate(target.classes)}
    known = [labels.get(normal_value(cell), -1) for cell in cells.values]
    for place, (cell, label) in enumerate(zip(cells.values, known, strict=True)):
        if label < 0 and not is_missing(cell):
            row = cells.first(place)
            raise FileError(
                f"The target {target.name!r} is {cell!r} in {table.where(row)}, which is none of the classes "
                f"{listed(target.classes)}; declare it or remove the row."
            )
    ranks = np.array(known, dtype=np.int64)[cells.codes]
    if target.kind == "binary":
        return ranks.astype(np.float32)[:, None], ranks >= 0
    return ranks, ranks >= 0


def _encode_column(table: Table, name: str, column: Column, cells: Cells) -> tuple[Matrix, list[str]]:
    match column:
        case Number():
            values = _numbers(table, name, cells, column.missing_values, column.decimal)
            absent = np.isnan(values)
            block, parts = number_features(values, column)[:, None], [name]
        case Category():
            block, absent, parts = _category_features(name, cells, column)
        case Date():
            block, absent, parts = _date_features(table, name, cells, column)
        case Text():
            return _text_features(cells, column), [f"{name} word hash {b}" for b in range(column.buckets)]
        case Skip():
            raise ValueError("a skipped column has no features")
    return _with_mark(name, column, block, absent, parts)


def _with_mark(
    name: str,
    column: Number | Category | Date,
    block: NDArray[np.floating],
    absent: NDArray[np.bool_],
    parts: list[str],
) -> tuple[Matrix, list[str]]:
    """The features of a column, 0 where there is no value, with a mark of that beside them where the schema asks."""
    block[absent] = 0
    if column.missing:
        block = np.concatenate([block, absent[:, None]], axis=1)
        parts = [*parts, f"{name} missing"]
    return block.astype(np.float32), parts


def _numbers(
    table: Table, name: str, cells: Cells, missing_values: Sequence[str], decimal: str = "."
) -> NDArray[np.float64]:
    try:
        return parse_numbers(cells, missing_values, decimal)
    except ValueError as error:
        row = error.args[0]
        raise FileError(
            f"Column {name!r} is a number, but {table.where(row)}, holds {cells[row]!r}; correct the cell, "
            "or declare the column as category or text, or the value as missing, in the schema."
        ) from error


def bounded(labels: NDArray[Any], target: Target) -> NDArray[Any]:
    """Labels as they are trained on: a number beyond the target's range counts as its end, so that none rules."""
    return np.clip(labels, -1, 1) if target.kind == "regression" else labels


def to_unit(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Numbers of a range as numbers from -1 to 1."""
    return (np.clip(values, low, high) - low) / (high - low) * 2 - 1


def number_features(values: NDArray[np.float64], column: Number) -> NDArray[np.float64]:
    """Numbers on their encoded scale; what is missing stays not a number."""

    def place(value: NDArray[np.float64] | float) -> NDArray[np.float64]:
        distance = np.clip(value, column.low, column.high) - column.low
        return np.log1p(distance) if column.scale == "log" else distance

    low, high = place(column.low), place(column.high)
    typical = (low + high) / 2 if column.typical is None else place(column.typical)
    return (place(values) - typical) / max(high - typical, typical - low)


def encoded_cuts(column: Number) -> tuple[float, ...]:
    """The cuts of a number on its encoded scale, in the precision of the features."""
    if column.cuts:
        places = number_features(np.array(column.cuts), column)
    else:
        low, high = number_features(np.array([column.low, column.high]), column)
        places = np.linspace(low, high, PARTS + 1)[1:-1]
    return tuple(np.unique(places.astype(np.float32)).tolist())


def _category_features(
    name: str, cells: Cells, column: Category
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[str]]:
    ranks = {normal_value(value): rank for rank, value in enumerate(column.values)}
    rank = np.array([ranks.get(normal_value(cell), -1) for cell in cells.values], dtype=np.int64)[cells.codes]
    absent = rank < 0
    if column.ordered:
        return to_unit(rank.astype(np.float64), 0, len(ranks) - 1)[:, None], absent, [name]
    if column.others:
        missing = np.array([is_missing(cell) for cell in cells.values], dtype=np.bool_)
        bucket = np.array([len(ranks) + word_hash(normal_value(c)) % column.others for c in cells.values])
        place = np.where(absent, bucket[cells.codes], rank)
        absent = absent & missing[cells.codes]
        one_hot = (place[:, None] == np.arange(len(ranks) + column.others)).astype(np.float64)
        others = [f"{name} = other {number + 1}" for number in range(column.others)]
        return one_hot, absent, [*(f"{name} = {value}" for value in column.values), *others]
    if len(ranks) == 2:
        return (rank == 1).astype(np.float64)[:, None], absent, [f"{name} = {column.values[1]}"]
    one_hot = (rank[:, None] == np.arange(len(ranks))).astype(np.float64)
    return one_hot, absent, [f"{name} = {value}" for value in column.values]


def _date_features(
    table: Table, name: str, cells: Cells, column: Date
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[str]]:
    out = np.zeros((len(cells.values), 5))
    absent = np.zeros(len(cells.values), dtype=np.bool_)
    span = (column.high - column.low) / timedelta(days=1)
    for row, cell in enumerate(cells.values):
        if is_missing(cell):
            absent[row] = True
            continue
        day = parse_date(cell, column.format)
        if day is None:
            raise FileError(
                f"Column {name!r} is a date written as {column.format}, but {table.where(cells.first(row))}, "
                f"holds {cell!r}."
            )
        place = min(max((day - column.low) / timedelta(days=1) / span, 0.0), 1.0) * 2 - 1
        season = 2 * math.pi * (day.timetuple().tm_yday - 1) / 366
        weekday = 2 * math.pi * day.weekday() / 7
        out[row] = place, math.sin(season), math.cos(season), math.sin(weekday), math.cos(weekday)
    # place² + (sin² + cos²) + (sin² + cos²) is at most 3
    parts = ["place in range", "season sin", "season cos", "weekday sin", "weekday cos"]
    return (out / math.sqrt(3))[cells.codes], absent[cells.codes], [f"{name} {part}" for part in parts]


def _text_features(cells: Cells, column: Text) -> Matrix:
    out = np.zeros((len(cells.values), column.buckets), dtype=np.float32)
    for row, cell in enumerate(cells.values):
        if is_missing(cell):
            continue
        for word in words(cell):
            code = word_hash(word)
            out[row, (code >> 1) % column.buckets] += 1 if code & 1 else -1
    norms = np.linalg.norm(out, axis=1, keepdims=True)
    out /= np.where(norms > 0, norms, 1)
    return out[cells.codes]
