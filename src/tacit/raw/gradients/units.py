"""The gradient of a unit: the sum of those of its examples, clipped as one."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.raw.exact import Share
from tacit.raw.gradients.base import TILE, Direct, Norms, PerExampleGradient, Several
from tacit.raw.gradients.convolution import Convolution
from tacit.raw.gradients.depthwise import Depthwise
from tacit.raw.gradients.embedding import Embedding
from tacit.raw.gradients.linear import Linear
from tacit.raw.units import UnitLayout
from tacit.support import Block

SMALL = 1 << 12
"""Inputs and output gradients of one example up to which a few empty places cost less than another pass."""


def of_units(use: PerExampleGradient, layout: UnitLayout) -> PerExampleGradient:
    """The gradients of units, from those of their examples."""
    match use:
        case Direct():
            return Direct(layout.totals(use.gradients))
        case Embedding():
            return use.regrouped(layout.owner, layout.units)
        case Linear() | Convolution() | Depthwise():
            return Ragged(use, layout)
        case Several():
            return Several([of_units(part, layout) for part in use.uses])
    return Formed(use, layout)


class Ragged(PerExampleGradient):
    """Gradients of units of different sizes: units of one size together, as examples with so many more positions.

    So the norm of a unit is found in the cheapest of the ways that there are for its layer and its size. The sum is
    over all examples at once, each with the weight of its unit, unless gradients were kept.
    """

    def __init__(self, use: Linear | Convolution | Depthwise, layout: UnitLayout) -> None:
        self.examples = layout.units
        self._use: Linear | Convolution | Depthwise | None = use
        self._owner = layout.owner
        padded = isinstance(use, Linear) and (use.a.numel() + use.b.numel()) <= SMALL * use.examples
        self._parts = [use.together(bucket) for bucket in layout.buckets(padded=padded)]
        self.terms = max(part.terms for part in self._parts)

    def per_example(self, start: int, stop: int) -> Tensor:
        found, first = [], 0
        for part in self._parts:
            low, high = max(start, first) - first, min(stop, first + part.examples) - first
            if low < high:
                found.append(part.per_example(low, high))
            first += part.examples
        return torch.cat(found) if found else self._parts[0].per_example(0, 0)

    def forming_error(self) -> Tensor | None:
        errors = [part.forming_error() for part in self._parts]
        known = [error for error in errors if error is not None]
        return torch.cat(known, 1) if len(known) == len(errors) else None

    def norms(self, block: Block) -> Norms:
        norms = Norms.joined([part.norms(block) for part in self._parts])
        if any(part.keeps for part in self._parts):
            self._use = None  # what is kept replaces it
        return norms

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        if self._use is not None and not self._use.keeps:
            return self._use.weighted_sum(weights[self._owner], block, allowance)
        return self._added(
            [
                part.weighted_sum(w, block, allowance)
                for part, w in zip(self._parts, self._split(weights), strict=True)
            ]
        )

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        shares = zip(self._parts, self._split(weights), strict=True)
        return self._added([part.weighted_absolute_sum(w, block) for part, w in shares])

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        shares = zip(self._parts, self._split(weights), strict=True)
        return self._added([part.weighted_row_norms(w, block) for part, w in shares])

    def _split(self, weights: Tensor) -> tuple[Tensor, ...]:
        return torch.split(weights, [part.examples for part in self._parts])

    @staticmethod
    def _added(parts: list[Tensor]) -> Tensor:
        total = parts[0].double()
        for part in parts[1:]:
            total = total + part
        return total


class Formed(PerExampleGradient):
    """Gradients of units that are added up from those of their examples, formed a few at a time."""

    def __init__(self, use: PerExampleGradient, layout: UnitLayout) -> None:
        self._use, self._owner = use, layout.owner
        self._ends = [0, *layout.ends.tolist()]
        self.examples = layout.units

    def per_example(self, start: int, stop: int) -> Tensor:
        low, last = self._ends[start], self._ends[stop]
        rows = self._use.per_example(low, min(last, low + 1))
        total = rows.new_zeros(stop - start, *rows.shape[1:])
        step = max(1, TILE // max(1, rows[:1].numel()))
        while low < last:
            total.index_add_(0, self._owner[low : low + len(rows)] - start, rows)
            low += len(rows)
            rows = self._use.per_example(low, min(last, low + step)) if low < last else rows
        return total
