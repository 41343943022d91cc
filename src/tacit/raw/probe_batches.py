"""Batches for a probe: a few finite examples, doubled, joined and compared, and put into company made to be noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit import batches

SHUFFLED = 1 << 20
"""Numbers that are shuffled as a whole to take a few of them."""


def some_positions(examples: int, count: int, draw: torch.Generator) -> list[int]:
    """``count`` different positions at random, or all there are; of very many examples without a number for each."""
    if examples <= SHUFFLED:
        return torch.randperm(examples, generator=draw)[:count].tolist()
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        chosen[int(torch.randint(examples, (), generator=draw))] = None
    return list(chosen)


def a_few(batch: Any, views: int, draw: torch.Generator, count: int) -> tuple[Any, Any]:
    """A few examples chosen at random, different ones where there are any, in the order of the batch; and others.

    The others are as many, with the least and the most of every kind of whole number among them.
    """
    examples = batches.rows(batch) // views
    order = torch.randperm(examples, generator=draw)
    first = chosen_examples(batch, [int(order[0])], views)
    differs = torch.zeros(examples, dtype=torch.bool)
    extremes = []
    for leaf, own in zip(pytree.tree_leaves(batch), pytree.tree_leaves(first), strict=True):
        if isinstance(leaf, Tensor) and leaf.dim():
            rows = leaf.reshape(examples, -1)
            differs |= (rows != own.reshape(1, -1)).any(1).cpu()
            if not leaf.is_floating_point():
                totals = rows.sum(1, dtype=torch.int64)
                extremes += [int(totals.argmin()), int(totals.argmax())]
    distinct = [int(place) for place in order if differs[place]]
    chosen = [int(order[0]), *distinct][:count]
    shown = torch.randperm(len(extremes), generator=draw).tolist()
    others = [*(extremes[place] for place in shown), *distinct[count:], *chosen]
    return chosen_examples(batch, sorted(chosen), views), chosen_examples(batch, others[: len(chosen)], views)


def chosen_examples(batch: Any, chosen: Sequence[int], views: int) -> Any:
    """These examples of a batch, with all their views."""
    return batches.take(batch, (torch.tensor(chosen)[:, None] * views + torch.arange(views)).flatten())


def joined(parts: Sequence[Any]) -> Any:
    """Batches of one structure, one after the other."""
    flat = [pytree.tree_flatten(part)[0] for part in parts]
    structure = pytree.tree_flatten(parts[0])[1]
    leaves = [
        torch.cat(leaves) if isinstance(leaves[0], Tensor) and leaves[0].dim() else leaves[0]
        for leaves in zip(*flat, strict=True)
    ]
    return pytree.tree_unflatten(leaves, structure)


def doubled(batch: Any) -> Any:
    """The batch in double precision."""
    return pytree.tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, batch
    )


NUDGES = (12.9898, 78.233)
"""Two patterns of small changes: where one happens to leave a value as it is, the other does not."""


def nudged(batch: Any, by: float, pattern: float = NUDGES[0]) -> Any:
    """The batch with its real numbers changed in proportion, by fixed signs that differ from number to number."""

    def change(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        places = torch.arange(x.numel(), device=x.device).view(x.shape)
        return x * (1 + by * torch.cos(places * pattern).to(x.dtype))

    return pytree.tree_map(change, batch)


def equal(one: Any, other: Any) -> bool:
    """Whether two batches hold the same numbers."""
    return all(
        not isinstance(a, Tensor) or torch.equal(a, b)
        for a, b in zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    )


def differ(batch: Any, views: int) -> bool:
    """Whether a batch holds two different examples."""
    examples = batches.rows(batch) // views
    return any(
        not equal(chosen_examples(batch, [0], views), chosen_examples(batch, [place], views))
        for place in range(1, examples)
    )


# Company that an example may find in its batch, made to be noticed: outliers, blanks, other contents and lengths.

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
