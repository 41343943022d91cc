"""Units of privacy: the examples of one person, say, among the examples of a batch.

Where every unit has one example there is nothing to do, and nothing here is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit import batches
from tacit.errors import ModelError
from tacit.units import numbered


@dataclass(frozen=True)
class UnitBatch:
    """A batch, and for each of its examples the unit that it belongs to.

    All examples of a unit that take part in a step are in one chunk: its gradient is clipped once.
    """

    batch: Any
    ids: Sequence[Hashable] | np.ndarray


@dataclass(frozen=True)
class Arranged:
    """A batch whose examples are in order of units, small units first: ``sizes`` are their numbers of examples.

    ``order`` tells where each unit stood before, in order of first appearance.
    """

    batch: Any
    sizes: np.ndarray
    order: np.ndarray


def arranged(chunk: UnitBatch, views: int) -> Arranged | None:
    """The chunk in order of its units; None where each has one example."""
    examples = batches.rows(chunk.batch) // views
    if len(chunk.ids) != examples:
        raise ModelError(
            "A batch has another number of examples than ids of units; collate and augment must keep the examples of a "
            "batch, in their order."
        )
    codes, count = numbered(chunk.ids)
    if count == examples:
        return None
    sizes = np.bincount(codes, minlength=count)
    units = np.argsort(sizes, kind="stable")
    rank = np.empty(count, np.int64)
    rank[units] = np.arange(count)
    order = np.argsort(rank[codes], kind="stable")
    batch = chunk.batch
    if (np.diff(order) != 1).any():
        rows = torch.from_numpy(order)[:, None] * views + torch.arange(views)
        batch = batches.take(batch, rows.flatten())
    return Arranged(batch, sizes[units], units)


@dataclass(frozen=True)
class Bucket:
    """Units whose norms are found together, as if each had ``size`` examples: ``units`` of them, one after the other.

    ``places`` says where each example goes among units · size places; None where every place is taken.
    """

    examples: slice
    units: int
    size: int
    places: Tensor | None

    def of(self, values: Tensor) -> Tensor:
        """(units, size, …) from (examples, …): zeros, which add nothing to a sum, where a unit has fewer examples."""
        own = values[self.examples]
        if self.places is not None:
            own = own.new_zeros(self.units * self.size, *own.shape[1:]).index_copy_(0, self.places, own)
        return own.view(self.units, self.size, *own.shape[1:])


class UnitLayout:
    """Which examples of a batch belong to which unit: consecutive ones, small units first."""

    def __init__(self, sizes: np.ndarray, device: torch.device) -> None:
        self._sizes, self._device = sizes, device
        self.units, self.examples = len(sizes), int(sizes.sum())
        self.ends = np.cumsum(sizes)
        counts = torch.from_numpy(sizes)
        self.counts = counts.to(device)
        self.owner = torch.repeat_interleave(torch.arange(self.units), counts).to(device)
        self._buckets: dict[bool, list[Bucket]] = {}

    def buckets(self, *, padded: bool) -> list[Bucket]:
        """All units, in order: one bucket for each size, or ``padded``, one for each power of two.

        The size that a unit is padded to depends on its own examples alone, never on its company.
        """
        if padded not in self._buckets:
            sizes = _powers_of_two(self._sizes) if padded else self._sizes
            edges = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), self.units]
            self._buckets[padded] = [
                self._bucket(first, last, int(sizes[first])) for first, last in itertools.pairwise(edges)
            ]
        return self._buckets[padded]

    def _bucket(self, first: int, last: int, size: int) -> Bucket:
        own = self._sizes[first:last]
        start, stop = int(self.ends[first] - self._sizes[first]), int(self.ends[last - 1])
        places = None
        if stop - start < (last - first) * size:
            within = np.arange(stop - start) - np.repeat(np.cumsum(own) - own, own)
            places = torch.from_numpy(np.repeat(np.arange(last - first), own) * size + within).to(
                self._device
            )
        return Bucket(slice(start, stop), last - first, size, places)

    def totals(self, values: Tensor) -> Tensor:
        """The sum over the examples of every unit."""
        parts = [
            bucket.of(values).sum(1) if bucket.size > 1 else values[bucket.examples]
            for bucket in self.buckets(padded=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def shares(self, losses: Tensor) -> Tensor:
        """What each example adds to the loss of its unit, which is the mean over its examples."""
        return losses.to(torch.promote_types(losses.dtype, torch.float32)) / self.counts[self.owner]


@lru_cache(maxsize=1)
def _table(largest: int) -> np.ndarray:
    powers = [1]
    while powers[-1] < largest:
        powers.append(2 * powers[-1])
    return np.array(powers)


def _powers_of_two(sizes: np.ndarray) -> np.ndarray:
    """The least power of two that each size does not exceed."""
    powers = _table(1 << int(sizes.max()).bit_length())
    return powers[np.searchsorted(powers, sizes)]
