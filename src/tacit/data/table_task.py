"""From encoded rows to a ``Task``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from tacit.data.encode import encode, encode_target
from tacit.data.infer import guess_column, guess_target, suspicious_numbers
from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Target, Text, read_schema
from tacit.data.table_file import Table, read_columns, row_keys
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Kind, Task, held_out_mask
from tacit.data.units import count_words, parted, unit_column, unit_words
from tacit.errors import ArgumentError, FileError
from tacit.name_lists import columns as columns_of
from tacit.name_lists import listed


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
    unit: str | None = None,
) -> Task:
    """Encode ``table`` and split it by the mask, if there is one; rows without a target are left out.

    ``classes`` renames the target's classes for display. ``unit`` is the column that says whose row each is.
    """
    target = schema.target
    y, known = encode_target(table, target)
    encoded = encode(table, schema)
    rest = np.zeros_like(known) if held_out is None else known & held_out
    train = known & ~rest
    _check_target(table, target, y[train], int(known.sum()))
    if held_out is not None and not rest.any():
        raise FileError(f"{table.path} has too few rows ({known.sum()}) to hold any out; bring more rows.")
    counted = COUNT_NOT_COVERED if unit is None else count_words(unit)
    ids = (None, None) if unit is None else parted(table.column(unit), train, rest)
    return Task(
        name=name,
        train=tensors(encoded.x[train], y[train]),
        held_out=None if held_out is None else tensors(encoded.x[rest], y[rest]),
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
    )


def _check_target(table: Table, target: Target, y: NDArray[np.generic], known: int) -> None:
    if known == 0:
        raise FileError(f"The target {target.name!r} is missing in every row of {table.path}.")
    if len(y) < 2:
        raise FileError(f"{table.path} has too few rows with a target ({known}) to train on.")
    if (y == y[0]).all():
        raise FileError(
            f"The target {target.name!r} has the same value in every training row of {table.path}; there is "
            "nothing to learn."
        )


HELD_OUT = 0.2


def read_table(
    path: str | Path,
    target: str | None = None,
    *,
    schema: Schema | str | Path | None = None,
    kind: Kind | None = None,
    positive: str | None = None,
    drop: Sequence[str] = (),
    held_out: float = HELD_OUT,
    split_by: str | None = None,
    separator: str | None = None,
    unit: str | None = None,
) -> Task:
    """Read a CSV or Parquet file as a task to predict the column ``target``.

    Types, ranges and categories come from ``schema`` (a ``Schema`` or a schema file). What it does not
    declare is guessed from the rows, and then ``not_covered`` names the columns concerned. Columns in
    ``drop`` are not used. A row is held out by a fixed hash of its contents, or of its value in the
    column ``split_by``, so that rows sharing that value stay together. ``kind`` and ``positive`` (the
    class counted as 1) are for a target that is not declared. ``unit`` is a column that says whose row each is; it is
    not predicted from, and rows that share its value are held out together.
    """
    task, _ = load_table(
        path,
        target,
        schema=schema,
        kind=kind,
        positive=positive,
        drop=drop,
        held_out=held_out,
        split_by=split_by,
        separator=separator,
        unit=unit,
    )
    return task


def load_table(
    path: str | Path | Table,
    target: str | None = None,
    *,
    schema: Schema | str | Path | None = None,
    kind: Kind | None = None,
    positive: str | None = None,
    drop: Sequence[str] = (),
    held_out: float = HELD_OUT,
    split_by: str | None = None,
    separator: str | None = None,
    unit: str | None = None,
) -> tuple[Task, Schema]:
    """The task of ``read_table``, and the complete schema with which the same file is read in the same way again.

    ``path`` may also be a table in memory. With ``held_out`` 0 all rows are trained on.
    """
    declared = read_schema(schema) if isinstance(schema, str | Path) else schema
    table = path if isinstance(path, Table) else read_columns(path, separator=separator)
    if unit is not None:
        if split_by not in (None, unit):
            raise ArgumentError("unit decides the split as well: its rows stay together; leave split_by out.")
        unit_column(table, unit, target or (declared.target.name if declared is not None else ""))
        drop, split_by = (*drop, unit), unit
    complete = _complete_schema(table, declared, target, kind, positive, drop, split_by)
    goal, columns = complete.target, dict(complete.columns)
    source = schema if isinstance(schema, str | Path) else "the given schema"
    mask = None
    if held_out:
        mask = held_out_mask(table.column(split_by) if split_by is not None else row_keys(table), held_out)
    task = table_task(
        Path(table.path).name,
        table,
        complete,
        mask,
        not_covered=not_covered_by(goal, columns),
        public_sources=(
            *_public_sources(goal, columns, source),
            *([] if mask is None else [_split_source(split_by)]),
        ),
        unit=unit,
    )
    return replace(task, warnings=tuple(suspicious_numbers(table, complete))), complete


def _complete_schema(
    table: Table,
    declared: Schema | None,
    target: str | None,
    kind: Kind | None,
    positive: str | None,
    drop: Sequence[str],
    split_by: str | None,
) -> Schema:
    """The declared schema, completed by guesses for the target and the columns that it does not mention."""
    if declared is None:
        if target is None:
            raise ArgumentError(
                f"Which column of {table.path} is to be predicted? Say --target with one of "
                f"{listed(list(table.columns))}."
            )
        goal = guess_target(table, target, kind, positive)
    else:
        goal = declared.target
        if target not in (None, goal.name):
            raise ArgumentError(
                f"The schema declares the target {goal.name!r}, but {target!r} was asked for."
            )
        if kind not in (None, goal.kind) or positive is not None:
            raise ArgumentError("The schema declares the target; change its kind and classes there.")
        table.column(goal.name)
    known = dict(declared.columns) if declared is not None else {}
    for name in (*known, *drop):
        table.column(name)
    if goal.name in drop:
        raise ArgumentError(f"The target {goal.name!r} cannot be dropped.")
    left_out = {goal.name, *drop}
    return Schema(
        goal,
        {
            name: known[name] if name in known else guess_column(table, name)
            for name in table.columns
            if name not in left_out and (name in known or name != split_by)
        },
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
    if not target.public:
        fact = "range" if target.kind == "regression" else "classes"
        sentences.append(f"The kind and the {fact} of the target {target.name!r}: read off the private rows.")
    return sentences


def _public_sources(target: Target, columns: dict[str, Column], source: str | Path) -> list[str]:
    declared = [name for name, column in columns.items() if column.public]
    sentences = []
    if declared:
        sentences.append(f"Types, ranges and categories of {columns_of(declared)}: declared in {source}.")
    if target.public:
        sentences.append(f"The target {target.name!r}: declared in {source}.")
    if any(isinstance(column, Text) for column in columns.values()):
        sentences.append("Words of text columns: a fixed hash, without a vocabulary.")
    return sentences


def _split_source(split_by: str | None) -> str:
    what = "each row's contents" if split_by is None else f"the column {split_by!r}"
    return f"Held-out rows: a fixed hash of {what}, row by row."
