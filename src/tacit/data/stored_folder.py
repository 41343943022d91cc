"""A folder of Parquet files that need not fit into memory, as a task. No row is read before training but held-out ones.

So nothing about the rows is known that a schema does not declare: ranges and categories would need a pass over all of
them, and would not be covered by ε. What is read at the start is the list of files and their footers, of which the
number of rows is used and the smallest and largest values, which footers may state too, are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from tacit.data.copies import refuse_copies
from tacit.data.encode import encode
from tacit.data.read_table import HELD_OUT
from tacit.data.row_groups import RowGroups, parquet_files
from tacit.data.schema import Schema, Skip, read_schema
from tacit.data.split_folders import split_folders
from tacit.data.stored_rows import MEMORY, StoredRows
from tacit.data.table_file import Table
from tacit.data.table_task import not_covered_by, public_sources
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Share, Task
from tacit.errors import ArgumentError, FileError, check_count, check_share
from tacit.name_lists import listed

MEASURED_ON = 100_000
"""Held-out rows that are measured on, at most."""
_PLACES = 20
"""Row groups, spread over the held-out files, that these come from."""


def read_folder(
    path: str | Path,
    target: str | None = None,
    *,
    schema: Schema | str | Path,
    drop: Sequence[str] = (),
    held_out: Share = HELD_OUT,
    memory: int = MEMORY,
) -> Task:
    """Read the Parquet files of a folder as a task to predict the column ``target`` of ``schema``.

    Columns that ``schema`` does not declare, and those in ``drop``, are not used. Whole files are held out: those in a
    folder test where there are folders train and test; else a share of the files, chosen by a fixed hash of their
    names. ``memory`` is about how many bytes of rows are held at once while training.
    """
    root = Path(path)
    declared = read_schema(schema) if isinstance(schema, str | Path) else schema
    goal = declared.target
    if target not in (None, goal.name):
        raise ArgumentError(f"The schema declares the target {goal.name!r}, but {target!r} was asked for.")
    check_count("memory", memory)
    columns = {name: column for name, column in declared.columns.items() if name not in drop}
    used = [name for name, column in columns.items() if not isinstance(column, Skip)]
    if not used:
        raise FileError(f"No column of {root} is left to predict from.")
    training, rest, split = _split(root, held_out)
    groups = RowGroups.of(training, [*used, goal.name])
    if groups.rows < 2:
        raise FileError(f"{root} has too few rows ({groups.rows}) to train on.")
    kept = Schema(goal, columns)
    train = StoredRows(groups, kept, memory)
    others = RowGroups.of(rest, [*used, goal.name])
    refuse_copies([*groups.with_rows, *others.with_rows])
    measured_on = _some_rows(StoredRows(others, kept)) if rest else None
    source = str(schema) if isinstance(schema, str | Path) else "the given schema"
    no_rows: dict[str, list[str]] = {name: [] for name in columns}
    encoded = encode(Table(str(root), no_rows, 0, 1), kept)
    return Task(
        name=root.name or "folder",
        train=train,
        held_out=measured_on,
        kind=goal.kind,
        input_shape=(encoded.x.shape[1],),
        classes=goal.classes,
        features=encoded.names,
        numbers=encoded.numbers,
        columns=encoded.columns,
        norm_bound=encoded.norm_bound,
        schema=kept,
        not_covered=(
            *not_covered_by(goal, columns),
            *([] if measured_on is None else [HELD_OUT_NOT_COVERED]),
            COUNT_NOT_COVERED,
        ),
        public_sources=(*public_sources(goal, columns, source), split),
    )


def _split(root: Path, held_out: Share) -> tuple[list[Path], list[Path], str]:
    """The files to train on, those to measure on, and how they were told apart: without any row."""
    if not root.is_dir():
        raise FileError(f"There is no folder {root}.")
    parts = split_folders(root)
    if len(parts) > 1:
        if isinstance(held_out, tuple):
            raise FileError(
                f"{root} has a folder {parts[1].name} to measure on; leave out fold, or that folder."
            )
        training, rest = map(parquet_files, parts)
        if not training or not rest:
            raise FileError(f"{root} holds no Parquet files in {parts[0].name}, or none in {parts[1].name}.")
        return training, rest, f"Held-out rows: the files in the folder {parts[1].name}."
    files = parquet_files(root)
    if not files:
        raise FileError(f"{root} holds no Parquet files (.parquet, .pq).")
    if not held_out:
        return files, [], "No file is held out."
    low, high = held_out if isinstance(held_out, tuple) else (0.0, held_out)
    check_share("held_out", high - low, one_allowed=False)
    if len(files) < 2:
        raise FileError(
            f"{root} holds one file, and rows are held out by file, because nobody looks through all of them; write "
            "several files, or say --held-out 0 or --test."
        )
    order = sorted(files, key=lambda file: _place(file.relative_to(root)))
    first, stop = round(low * len(files)), round(high * len(files))
    if isinstance(held_out, tuple):
        if first == stop:
            raise FileError(
                f"{root} holds {len(files)} files, too few to be divided so often; ask for fewer folds."
            )
    else:
        stop = min(max(stop, 1), len(files) - 1)
    chosen = set(order[first:stop])
    return (
        [file for file in files if file not in chosen],
        [file for file in files if file in chosen],
        f"Held-out rows: {len(chosen)} of {len(files)} files, by a fixed hash of their names.",
    )


def _place(name: Path) -> bytes:
    raw = name.as_posix().encode("utf-8", "surrogateescape")
    return hashlib.blake2b(raw, digest_size=8, person=b"tacit-split").digest()


def _some_rows(rows: StoredRows) -> TensorDataset:
    """At most ``MEASURED_ON`` rows, in runs that are spread over the files; those without a target are left out."""
    groups = rows.groups
    if not groups.rows:
        raise FileError(
            f"The held-out files, {listed([Path(file).name for file in groups.files])}, are empty."
        )
    chosen = np.unique(np.linspace(0, len(groups.ends) - 1, _PLACES).astype(np.int64))
    most = -(-MEASURED_ON // len(chosen))
    positions = np.concatenate(
        [
            np.arange(groups.start(int(g)), min(groups.start(int(g)) + most, int(groups.ends[g])))
            for g in chosen
        ]
    )
    batch = rows.gather(positions)(0, len(positions))
    if batch is None:
        raise FileError(f"The target {rows.schema.target.name!r} is missing in the held-out rows.")
    return TensorDataset(*batch)
