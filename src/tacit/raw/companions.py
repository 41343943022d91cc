"""Company that an example may find in its batch, made to be noticed: outliers, blanks, other contents and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

OUTLIER = 1e3

Change = Callable[[Tensor], Tensor]


def _scaled(factor: float) -> Change:
    return lambda x: x * factor if x.is_floating_point() else x


def _least(x: Tensor) -> Tensor:
    return x if x.is_floating_point() or not x.numel() else torch.full_like(x, x.amin().item())


def _most(x: Tensor) -> Tensor:
    return x if x.is_floating_point() or not x.numel() else torch.full_like(x, x.amax().item())


def _halved(x: Tensor) -> Tensor:
    """Smaller whole numbers: lengths, places, labels."""
    return x if x.is_floating_point() or x.dtype is torch.bool else torch.where(x > 0, x // 2, x)


def _reversed(x: Tensor) -> Tensor:
    """Contents in another order: within an example, or among examples where each has one number."""
    return x.flip(0) if x.dim() < 2 else x.flip(tuple(range(1, x.dim())))


def _shuffled(x: Tensor) -> Tensor:
    """The numbers of all examples, dealt out again."""
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(7))
    return x.reshape(-1)[order.to(x.device)].view(x.shape)


CHANGES: dict[str, Change] = {
    "large": _scaled(OUTLIER),
    "large and negative": _scaled(-OUTLIER),
    "blank": _scaled(0.0),
    "least": _least,
    "most": _most,
    "halved": _halved,
    "reversed": _reversed,
    "shuffled": _shuffled,
}


def changed(batch: Any, change: Change) -> Any:
    """A batch with every tensor that holds examples changed; numbers stay among those that occur in it."""
    return pytree.tree_map(lambda x: change(x) if isinstance(x, Tensor) and x.dim() else x, batch)


def changed_item(item: Any, change: Change) -> Any:
    """One item of a data set, not collated yet, changed in the same way; what holds no numbers stays."""

    def of(array: np.ndarray) -> np.ndarray:
        return array if array.dtype.kind not in "fiub" else change(torch.from_numpy(array.copy())).numpy()

    return _arrays(item, of)


def resized_item(item: Any, factor: float) -> Any:
    """One item with another length: the leading dimension that its longest arrays share, cut or repeated."""
    lengths = [0]

    def measure(array: np.ndarray) -> np.ndarray:
        lengths.append(len(array))
        return array

    _arrays(item, measure)
    length = max(lengths)
    wanted = np.arange(max(1, int(factor * length))) % max(1, length)
    return _arrays(item, lambda array: array[wanted] if len(array) == length > 1 else array)


def _arrays(item: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Change the tensors, arrays and lists of numbers of an item that have a dimension."""

    def numbers(leaf: Any) -> bool:
        return isinstance(leaf, list) and bool(leaf) and all(type(x) in (int, float, bool) for x in leaf)

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.dtype is not torch.bfloat16:
            return torch.from_numpy(change(leaf.detach().cpu().numpy())).to(leaf.device)
        if isinstance(leaf, np.ndarray) and leaf.ndim:
            return change(leaf)
        return change(np.array(leaf)).tolist() if numbers(leaf) else leaf

    return pytree.tree_map(of, item, is_leaf=numbers)
