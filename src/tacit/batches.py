"""Batches as users have them: tensors, or tuples, lists and dicts of tensors, nested as they like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit.errors import ModelError


@runtime_checkable
class Stored(Protocol):
    """A data set that is not in memory, and reads the examples of many steps in one pass.

    ``rows_ahead`` is how many examples it holds at once. ``gather`` reads those at some positions, in any order and
    maybe more than once; what it returns makes the batch of those from one place to another, nothing where it is empty.
    Whether an example is in the batch may depend on that example alone. ``digest`` tells different data sets apart
    without reading examples.
    """

    rows_ahead: int

    def __len__(self) -> int:
        """The number of examples."""

    def gather(self, positions: NDArray[np.int64]) -> Callable[[int, int], Any]:
        """Read the examples at ``positions``."""

    def digest(self) -> str:
        """Equal for data sets of the same examples in the same order."""


def rows(batch: Any) -> int:
    """The number of stacked inputs: the size of the first dimension, which all tensors share."""
    check_strided(batch)
    sizes = {leaf.shape[0] for leaf in tensors(batch) if leaf.dim()}
    if len(sizes) != 1:
        found = "there is no tensor" if not sizes else "they differ"
        raise ModelError(
            f"The tensors of a batch must share their first dimension, the number of examples; here {found}."
        )
    return int(sizes.pop())


def tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in order."""
    if _is_flat(batch):
        return list(batch)
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]


def _is_flat(batch: Any) -> bool:
    """Whether a batch is a plain tuple of tensors, which needs no walk through a tree: a small step would feel it."""
    return type(batch) is tuple and all(isinstance(leaf, Tensor) for leaf in batch)


def shapes(batch: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of one example's tensors."""
    return tuple(tuple(leaf.shape[1:]) for leaf in tensors(batch) if leaf.dim())


def check_strided(batch: Any) -> None:
    """Refuse sparse tensors, whose rows no rule can tell apart, with the way to give such rows."""
    for leaf in tensors(batch):
        if leaf.layout is not torch.strided:
            raise ModelError(
                f"A batch holds a sparse tensor ({leaf.layout}), which layers cannot take row by row; give the rows as "
                "tacit.data.SparseRows(matrix, targets) to a model that begins with tacit.models.SparseLinear, or make "
                "them dense."
            )


def take(batch: Any, index: Tensor) -> Any:
    """The given rows of every tensor; everything else stays as it is."""
    return pytree.tree_map(
        lambda leaf: leaf[index.to(leaf.device)] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch
    )


def part(batch: Any, start: int, stop: int) -> Any:
    """Consecutive rows of every tensor, without copying them; everything else stays as it is."""
    return pytree.tree_map(
        lambda leaf: leaf[start:stop] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch
    )


def own(batch: Any, given: Any) -> Any:
    """``batch`` with copies of those tensors that are the ``given`` ones themselves, which may be written to later."""
    return pytree.tree_map(
        lambda leaf, before: leaf.clone() if isinstance(leaf, Tensor) and leaf is before else leaf,
        batch,
        given,
    )


def nbytes(batch: Any) -> int:
    """The memory that its tensors take."""
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))


def place(batch: Any, device: torch.device, *, channels_last: bool) -> Any:
    """The batch on a device, images laid out channels-last where the model works that way."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.to(device, non_blocking=True)
        if channels_last and leaf.dim() == 4 and leaf.is_floating_point():
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        return leaf

    return tuple(map(move, batch)) if _is_flat(batch) else pytree.tree_map(move, batch)
