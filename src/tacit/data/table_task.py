"""From encoded rows to a ``Task``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from tacit.data.encode import bounded, encode, encode_target
from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Target, Text
from tacit.data.table_file import Table
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, OfRows, Task
from tacit.data.units import count_words, parted, unit_words
from tacit.errors import FileError
from tacit.name_lists import columns as columns_of

_EDGE = 1e-6
"""How far rounding may carry a target beyond the end of its range."""
_FEW_OUTSIDE = 0.005
"""Share of held-out targets outside the range that is not worth a word."""


def tensors(x: NDArray[np.generic], y: NDArray[np.generic]) -> TensorDataset:
    """Pair two arrays of equal length as a dataset of tensors."""
    return TensorDataset(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y)))


def labels(y: NDArray[np.integer], binary: bool) -> NDArray[np.generic]:
    """Return labels as ``Task`` wants them: a column of floats for two classes, int64 for more."""
    return y.astype(np.float32)[:, None] if binary else y.astype(np.int64)


def table_task(
    name: str,
    table: Table,
    schema: Schema,
    held_out: NDArray[np.bool_] | None,
    *,
    classes: Sequence[str] | None = None,
    not_covered: Sequence[str] = (),
    public_sources: Sequence[str] = (),
    labels: tuple[NDArray[np.generic], NDArray[np.bool_]] | None = None,
    unit: str | None = None,
) -> Task:
    """Encode ``table`` and split it by the mask, if there is one; rows without a target are left out.

    ``classes`` renames the target's classes for display. ``labels`` are the target's, and which rows have one, where
    they were read before. ``unit`` is the column that says whose row each is.
    """
    target = schema.target
    y, known = encode_target(table, target) if labels is None else labels
    rest = np.zeros_like(known) if held_out is None else known & held_out
    train = known & ~rest
    trained = bounded(y[train], target)
    check_target(table, target, trained, known, held_out)
    encoded = encode(table, schema)
    counted = COUNT_NOT_COVERED if unit is None else count_words(unit)
    ids = (None, None) if unit is None else parted(table.column(unit), train, rest)
    return Task(
        name=name,
        train=tensors(encoded.x[train], trained),
        held_out=None if held_out is None else tensors(encoded.x[rest], bounded(y[rest], target)),
        kind=target.kind,
        input_shape=(encoded.x.shape[1],),
        classes=tuple(classes or target.classes),
        features=encoded.names,
        numbers=encoded.numbers,
        columns=encoded.columns,
        norm_bound=encoded.norm_bound,
        schema=schema,
        not_covered=(*not_covered, *([] if held_out is None else [HELD_OUT_NOT_COVERED]), counted),
        public_sources=tuple(public_sources),
        unit="" if unit is None else unit_words(unit),
        units=ids[0],
        held_out_units=ids[1],
        warnings=tuple(targets_outside(y[rest], target)),
    )


def targets_outside(labels: NDArray[Any], target: Target) -> list[str]:
    """A sentence on held-out labels beyond the target's range, which figures would pass over in silence."""
    if target.kind != "regression" or not len(labels):
        return []
    share = float(np.mean(np.abs(labels) > 1 + _EDGE))
    if share <= _FEW_OUTSIDE:
        return []
    low, high = target.range
    return [
        OfRows(
            f"{share:.1%} of the held-out targets lie outside the range that is trained on, {low:g} to {high:g}. The "
            "model does not predict them, and the figures count them as its ends. If they are real, declare low and "
            "high of the target in a schema."
        )
    ]


_SPLIT_TOGETHER = (
    ". Rows that are equal, or share a value of --split-by or --unit, are held out together; --held-out 0 trains on "
    "all."
)


def check_target(
    table: Table,
    target: Target,
    y: NDArray[np.generic],
    known: NDArray[np.bool_],
    held_out: NDArray[np.bool_] | None,
) -> None:
    """Refuse a table without anything to learn; ``y`` are the labels of its training rows."""
    rows = int(known.sum())
    if rows == 0:
        raise FileError(f"The target {target.name!r} is missing in every row of {table.path}.")
    if len(y) < 2:
        raise FileError(f"{table.path} has too few rows with a target ({rows}) to train on.")
    if held_out is not None and not (known & held_out).any():
        raise FileError(f"{table.path} has too few rows ({rows}) to hold any out; bring more rows.")
    if (y == y[0]).all():
        raise FileError(
            f"The target {target.name!r} has the same value in every training row of {table.path}; there is "
            f"nothing to learn{_SPLIT_TOGETHER if held_out is not None else '.'}"
        )


def not_covered_by(target: Target, columns: dict[str, Column]) -> list[str]:
    """Say which facts of a schema were read off the private rows, column by column."""
    facts = {
        "The type, range, scale, typical value (a median), cuts (quantiles) and missing-value marks of": (
            Number,
        ),
        "The type, list of values and missing-value marks of": (Category,),
        "The type, format, range and missing-value marks of": (Date,),
        "The choice to treat as free text": (Text,),
        "The choice to leave out": (Skip,),
    }
    sentences = []
    for fact, kinds in facts.items():
        names = [name for name, c in columns.items() if isinstance(c, kinds) and not c.public]
        if names:
            sentences.append(f"{fact} {columns_of(names)}: read off the private rows.")
    measured = [name for name, column in columns.items() if getattr(column, "measured", False)]
    if measured:
        sentences.append(
            f"Which of {columns_of(measured)} hold numbers, flags of 0 and 1, dates or categories, how these are "
            "written, and which words mark missing values: read off the private rows. Their ranges, quantiles and "
            "lists of categories were measured with noise and are covered."
        )
    if not target.public:
        fact = "range" if target.kind == "regression" else "classes"
        sentences.append(f"The kind and the {fact} of the target {target.name!r}: read off the private rows.")
    if target.measured and target.public:
        sentences.append(
            f"The kind of the target {target.name!r}: read off the private rows. Its range was measured with noise and "
            "is covered."
        )
    return sentences


def public_sources(target: Target, columns: dict[str, Column], source: str) -> list[str]:
    """Say where the facts of a schema come from."""
    measured = [name for name, column in columns.items() if getattr(column, "measured", False)]
    declared = [name for name, column in columns.items() if column.public and name not in measured]
    sentences = []
    if declared:
        sentences.append(f"Types, ranges and categories of {columns_of(declared)}: declared in {source}.")
    if measured:
        sentences.append(
            f"Ranges and categories of {columns_of(measured)}: measured with noise, within epsilon."
        )
    if target.public and not target.measured:
        sentences.append(f"The target {target.name!r}: declared in {source}.")
    if any(isinstance(column, Text) for column in columns.values()):
        sentences.append("Words of text columns: a fixed hash, without a vocabulary.")
    return sentences
