"""From encoded rows to a ``Task``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from tacit.data.encode import encode, encode_target
from tacit.data.schema import Schema, Target
from tacit.data.table import Table
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Task
from tacit.errors import FileError


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
    held_out: NDArray[np.bool_],
    *,
    classes: Sequence[str] | None = None,
    not_covered: Sequence[str] = (),
    public_sources: Sequence[str] = (),
) -> Task:
    """Encode ``table`` and split it by the mask; rows without a target are left out.

    ``classes`` renames the target's classes for display.
    """
    target = schema.target
    y, known = encode_target(table, target)
    encoded = encode(table, schema)
    train, rest = known & ~held_out, known & held_out
    _check_target(table, target, y[train], int(known.sum()))
    if not rest.any():
        raise FileError(f"{table.path} has too few rows ({known.sum()}) to hold any out; bring more rows.")
    return Task(
        name=name,
        train=tensors(encoded.x[train], y[train]),
        held_out=tensors(encoded.x[rest], y[rest]),
        kind=target.kind,
        input_shape=(encoded.x.shape[1],),
        classes=tuple(classes or target.classes),
        features=encoded.names,
        norm_bound=encoded.norm_bound,
        not_covered=(*not_covered, HELD_OUT_NOT_COVERED, COUNT_NOT_COVERED),
        public_sources=tuple(public_sources),
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
