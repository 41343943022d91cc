"""Rows of a wide sparse matrix: hashed words, one-hot tables, whatever is mostly zero.

Every row becomes the numbers of the columns in which it is not zero, each with its value. A linear layer on such rows
is a table that is looked up (``tacit.models.SparseLinear``), so a step costs what its rows touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tacit.errors import ArgumentError, check_count

LENGTH = 512
"""Entries of a row that count, where nothing else was said and rows may be of any length."""

LONGEST = 1 << 14
"""Entries of the longest row that are taken without being asked for: all rows of a batch are filled up to it."""

MOST_COLUMNS = (1 << 31) - 2

_WRONG = "An entry is in a row or column that the matrix does not have; it was put together wrongly."

Item = tuple[tuple[Tensor, Tensor], Tensor]


def is_sparse(rows: object) -> bool:
    """Whether ``rows`` is a sparse matrix of SciPy or a sparse tensor of PyTorch."""
    if isinstance(rows, Tensor):
        return rows.layout is not torch.strided
    return type(rows).__module__.startswith("scipy.sparse") and hasattr(rows, "tocsr")


class SparseRows(Dataset[Item]):
    """The rows of a sparse matrix with their targets: an item is ``((ids, values), target)``.

    ``ids`` are column numbers counted from 1, ``values`` what stands there; 0 fills up rows to the longest that are
    fetched together. Entries that are given twice add up, and those that are zero do not count.

    Args:
        matrix: A SciPy sparse matrix or a sparse PyTorch tensor (COO, CSR, CSC), one row per example.
        targets: One target per row, a tensor or what ``torch.as_tensor`` takes.
        length: Of a row, so many entries count: the largest, by size. By default all do.
    """

    def __init__(self, matrix: Any, targets: Any, *, length: int | None = None) -> None:
        self.columns, self._starts, self._ids, self._values = _entries(matrix)
        rows = len(self._starts) - 1
        self._targets = torch.as_tensor(targets)
        if self._targets.dim() == 0 or len(self._targets) != rows:
            found = len(self._targets) if self._targets.dim() else 0
            raise ArgumentError(f"There are {rows:,} rows and {found:,} targets; give one per row.")
        longest = int(np.diff(self._starts).max(initial=0))
        if length is not None:
            self._cut(check_count("length", length))
        elif longest > LONGEST:
            raise ArgumentError(
                f"A row has {longest:,} entries, and all rows of a batch are filled up to the longest; give length, "
                "the number of entries of a row that count: the largest."
            )

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, position: int) -> Item:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Item]:
        """Several rows, filled up to the longest of them."""
        ids, values = self.padded(np.asarray(positions, np.int64))
        return [
            ((one, two), self._targets[place]) for one, two, place in zip(ids, values, positions, strict=True)
        ]

    @property
    def telling(self) -> tuple[Tensor, Tensor]:
        """The largest id of every row and its target: where these go through a model, all others do."""
        largest = np.zeros(len(self), np.int64)
        held = np.diff(self._starts) > 0
        if held.any():
            largest[held] = np.maximum.reduceat(self._ids, self._starts[:-1][held])
        return torch.from_numpy(largest), self._targets

    def padded(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Ids and values of some rows, filled up to the longest of them, or to one entry where none has any."""
        positions = np.where(positions < 0, positions + len(self), positions)
        if positions.size and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"there are {len(self)} rows")
        starts, sizes = self._starts[positions], np.diff(self._starts)[positions]
        places = np.arange(max(1, int(sizes.max(initial=0))))
        real = places < sizes[:, None]
        ids = np.zeros(real.shape, np.int64)
        values = np.zeros(real.shape, np.float32)
        within = (starts[:, None] + places)[real]
        ids[real], values[real] = self._ids[within], self._values[within]
        return torch.from_numpy(ids), torch.from_numpy(values)

    def _cut(self, length: int) -> None:
        """Keep the largest entries of rows that have more; each row is looked at alone."""
        sizes = np.diff(self._starts)
        if not (sizes > length).any():
            return
        owner = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((-np.abs(self._values), owner))
        within = np.arange(len(owner)) - np.repeat(self._starts[:-1], sizes)
        kept = np.sort(order[within < length])
        self._ids, self._values = self._ids[kept], self._values[kept]
        self._starts = np.concatenate([[0], np.cumsum(np.minimum(sizes, length))])


def _entries(matrix: Any) -> tuple[int, NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """The number of columns, where every row starts, and the ids and values of its entries."""
    if not is_sparse(matrix):
        raise ArgumentError(
            f"Sparse rows are those of a SciPy sparse matrix or of a sparse tensor, got a {type(matrix).__name__}."
        )
    if len(matrix.shape) != 2:
        raise ArgumentError(f"Sparse rows need a matrix of two dimensions, got {len(matrix.shape)}.")
    if not 0 < matrix.shape[1] <= MOST_COLUMNS:
        raise ArgumentError(
            f"A sparse matrix may have 1 to {MOST_COLUMNS:,} columns, got {matrix.shape[1]:,}."
        )
    from scipy.sparse import coo_array  # only wide rows need it

    if isinstance(matrix, Tensor):
        try:
            parts = matrix.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
        except (RuntimeError, NotImplementedError) as error:
            raise ArgumentError(
                f"A sparse tensor of layout {matrix.layout} cannot be read; give CSR."
            ) from error
        index, given = parts.indices().numpy(), parts.values()
        if given.dim() != 1:
            raise ArgumentError("Sparse rows hold one number per entry; this tensor has dense dimensions.")
        values = given.double().numpy() if not given.is_complex() else given.numpy()
    else:
        try:
            found = matrix.tocoo()
        except ValueError as error:
            raise ArgumentError(_WRONG) from error
        index, values = np.stack([found.row, found.col]), found.data
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"Sparse rows hold numbers, got values of type {values.dtype}.")
    for axis in (0, 1):
        if index.shape[1] and not 0 <= index[axis].min() <= index[axis].max() < matrix.shape[axis]:
            raise ArgumentError(_WRONG)
    rows = coo_array((values.astype(np.float64), (index[0], index[1])), shape=tuple(matrix.shape)).tocsr()
    rows.sum_duplicates()
    with np.errstate(over="ignore"):
        rows.data = rows.data.astype(np.float32)
    rows.eliminate_zeros()
    if not np.isfinite(rows.data).all():
        raise ArgumentError(
            "Sparse rows hold a value that is not a finite number in single precision; remove it first."
        )
    return int(matrix.shape[1]), rows.indptr.astype(np.int64), rows.indices.astype(np.int32) + 1, rows.data
