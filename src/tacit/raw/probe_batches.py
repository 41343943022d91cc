"""Batches for a probe: a few finite examples, doubled, joined and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
