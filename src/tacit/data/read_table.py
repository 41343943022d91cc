"""Reading a user's table: its file, what a schema declares, what is guessed for the rest, which rows are held out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.data.infer import guess_column, guess_target
from tacit.data.open_table import OpenTable
from tacit.data.schema import Schema, read_schema
from tacit.data.table_file import Table, read_columns, row_keys
from tacit.data.task import Kind, Share, Task, held_out_mask
from tacit.data.units import unit_column
from tacit.errors import ArgumentError
from tacit.name_lists import listed

HELD_OUT = 0.2


def read_table(
    path: str | Path,
    target: str | None = None,
    *,
    schema: Schema | str | Path | None = None,
    kind: Kind | None = None,
    positive: str | None = None,
    drop: Sequence[str] = (),
    held_out: Share = HELD_OUT,
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
    opened = open_table(
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
    return opened.rows_task


def open_table(
    path: str | Path | Table,
    target: str | None = None,
    *,
    schema: Schema | str | Path | None = None,
    kind: Kind | None = None,
    positive: str | None = None,
    drop: Sequence[str] = (),
    held_out: Share = HELD_OUT,
    split_by: str | None = None,
    separator: str | None = None,
    unit: str | None = None,
) -> OpenTable:
    """The table of ``read_table``, before it is encoded.

    ``path`` may also be a table in memory. With ``held_out`` 0 all rows are trained on; a pair such as (0.2, 0.4) holds
    out that part of them.
    """
    declared = read_schema(schema) if isinstance(schema, str | Path) else schema
    table = path if isinstance(path, Table) else read_columns(path, separator=separator)
    if unit is not None:
        if split_by not in (None, unit):
            raise ArgumentError("unit decides the split as well: its rows stay together; leave split_by out.")
        unit_column(table, unit, target or (declared.target.name if declared is not None else ""))
        drop, split_by = (*drop, unit), unit
    complete = _complete_schema(table, declared, target, kind, positive, drop, split_by)
    source = str(schema) if isinstance(schema, str | Path) else "the given schema"
    mask = None
    if held_out:
        mask = held_out_mask(table.column(split_by) if split_by is not None else row_keys(table), held_out)
    return OpenTable.of(table.path, table, complete, mask, source, _split_source(split_by), unit)


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


def _split_source(split_by: str | None) -> str:
    what = "each row's contents" if split_by is None else f"the column {split_by!r}"
    return f"Held-out rows: a fixed hash of {what}, row by row."
