"""The interface of a use, with defaults that hold for any parameter, in bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.raw.doubts import anywhere
from tacit.raw.exact import UNIT, Share, norms_above, squared_norms, sum_of_rows
from tacit.support import Block, Weights

TILE = 1 << 19
"""Elements of a per-example gradient tile that are formed at once: small enough to stay in cache."""
NOTHING = 2.0**-100
"""Squared norms below are of no interest to any clip norm."""
AGAIN = 256
"""Examples that are measured again at once."""
MATERIAL = 2.0**-9
"""Share of a squared norm up to which what rounding may have hidden leaves the weight of an example as it is."""
LARGEST_MASS = 512.0
"""Terms that cancel may add up to this many times the clip norm; an example beyond counts less."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of the examples' masked gradients, in double precision.

    ``square`` is what was computed. ``above`` is never below the squared norm of what ``weighted_sum`` sums: it is
    ``square`` plus what rounding may have hidden. ``mass`` bounds the sum of the norms of the terms that an example's
    gradient is the sum of, ``terms`` of them at most; rounding of the sum over examples grows with both.
    """

    square: Tensor
    above: Tensor
    mass: Tensor
    terms: int = 1

    @staticmethod
    def exact(square: Tensor) -> Norms:
        """Norms of gradients that are summed as they were measured."""
        return Norms(square, square, square.sqrt())

    @staticmethod
    def joined(parts: Sequence[Norms]) -> Norms:
        """The norms of examples one after the other."""
        if len(parts) == 1:
            return parts[0]
        square, above, mass = (
            torch.cat(list(tensors))
            for tensors in zip(*((part.square, part.above, part.mass) for part in parts), strict=True)
        )
        return Norms(square, above, mass, max(part.terms for part in parts))

    def __add__(self, other: Norms) -> Norms:
        """The norms over the coordinates of both: different parameters.

        A mass that would not change the weight of one of them by itself does not count beside the other's either, so
        a bound may stand for it.
        """
        masses = [norms.mass.maximum(LARGEST_MASS * norms.square.sqrt()) for norms in (self, other)]
        return Norms(
            self.square + other.square,
            self.above + other.above,
            torch.hypot(*masses),
            max(self.terms, other.terms),
        )


class PerExampleGradient(ABC):
    """One parameter's per-example gradients over the ``examples`` of a physical batch, in implicit form.

    ``norms(block)`` is always called before ``weighted_sum(weights, block)`` with the same block, so that a use may
    keep what the first has computed for the second. Sums are exact to double precision, or verified against an
    ``allowance``.
    """

    examples: int
    terms: int = 1
    """Terms that the gradient of one example is the sum of."""
    _measured: Tensor | None = None

    @abstractmethod
    def per_example(self, start: int, stop: int) -> Tensor:
        """The gradients of examples ``start`` to ``stop``, of shape (stop − start, *parameter shape)."""

    def forming_error(self) -> Tensor | None:
        """How far each gradient of ``per_example`` may be from what is summed, and its mass; None if unknown."""
        return None

    def masked_error(self, block: Block) -> Tensor | None:
        """The same on the active coordinates, where that is known to be less."""
        return self.forming_error()

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        """Σᵢ wᵢ (m ⊙ gᵢ) on the active coordinates, as the block's compact tensor (wᵢ ≥ 0)."""
        return self._formed_again(weights, block, lambda w, rows: sum_of_rows(w, rows)).view(
            block.compact_shape
        )

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        """Σᵢ wᵢ |m ⊙ gᵢ| on the active coordinates, as the block's compact tensor (wᵢ ≥ 0)."""
        return self._formed_again(weights, block, lambda w, rows: sum_of_rows(w, rows, absolute=True)).view(
            block.compact_shape
        )

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        """Σᵢ wᵢ ‖gᵢ[r]‖ for every row r of a parameter that is active as a whole (wᵢ ≥ 0)."""
        return self._formed_again(weights, block, lambda w, rows: w @ row_norms(rows, block.row_count))

    def weighted(self, weights: Weights) -> PerExampleGradient:
        """The use whose per-example gradients are these times the weights of a soft support."""
        return Weighted(self, weights)

    def active(self, start: int, stop: int, block: Block) -> Tensor:
        """The active coordinates of the gradients of examples ``start`` to ``stop``, one row each."""
        return as_rows(block.gather_batch(self.per_example(start, stop)))

    def norms(self, block: Block) -> Norms:
        """‖m ⊙ gᵢ‖² for every example."""
        parts = [squared_norms(self.active(*part, block)) for part in self.parts(block)]
        self._measured = torch.cat(parts)
        return Norms.exact(self._measured)

    def parts(self, block: Block) -> Iterator[tuple[int, int]]:
        """Ranges of examples whose gradients together are small enough to be formed at once."""
        step = max(1, TILE // max(1, block.total))
        for start in range(0, self.examples, step):
            yield start, min(self.examples, start + step)

    def _formed_again(self, weights: Tensor, block: Block, add: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The sum of what ``add`` makes of gradients that are formed again, tile by tile.

        They may round otherwise than when they were measured, so they are measured again: none is summed at more
        than the norm that its weight was found for.
        """
        total: Tensor | None = None
        for start, stop in self.parts(block):
            rows = self.active(start, stop, block)
            squares = squared_norms(rows)
            # Single precision may overflow where the norm was found in double: such a gradient counts as zero.
            rows = torch.where(squares.isfinite()[:, None], rows, torch.zeros_like(rows))
            scaled = weights[start:stop].double()
            if self._measured is not None:
                scaled = scaled * no_longer(squares, self._measured[start:stop])
            part = add(scaled, rows)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total


class Held(PerExampleGradient):
    """Per-example gradients that are held as they are from the norm to the sum."""

    @abstractmethod
    def _held(self, block: Block) -> Tensor:
        """The active coordinates of the gradients, one row per example."""

    def norms(self, block: Block) -> Norms:
        return Norms.exact(squared_norms(self._held(block)))

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        return sum_of_rows(weights, self._held(block)).view(block.compact_shape)

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        return sum_of_rows(weights, self._held(block), absolute=True).view(block.compact_shape)

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        return weights.double() @ row_norms(self._held(block), block.row_count)


class Direct(Held):
    """Per-example gradients that are small enough to be held whole: biases, scales, shifts, and fallbacks."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.examples = len(gradients)
        self._active: Tensor | None = None

    def per_example(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def forming_error(self) -> Tensor:
        mass = squared_norms(self.gradients).sqrt_()
        return torch.stack([torch.zeros_like(mass), mass])

    def masked_error(self, block: Block) -> Tensor:
        mass = squared_norms(self._held(block)).sqrt_()
        return torch.stack([torch.zeros_like(mass), mass])

    def weighted(self, weights: Weights) -> PerExampleGradient:
        spread = weights.spread(self.gradients.dim() - 1)
        return Direct(self.gradients * spread.to(self.gradients.device, self.gradients.dtype))

    def _held(self, block: Block) -> Tensor:
        if self._active is None:
            self._active = as_rows(block.gather_batch(self.gradients))
        return self._active


class Weighted(PerExampleGradient):
    """Any use, its per-example gradients multiplied by the weights of a soft support as they are formed."""

    def __init__(self, use: PerExampleGradient, weights: Weights) -> None:
        self._use, self._weights = use, weights
        self.examples = use.examples

    def per_example(self, start: int, stop: int) -> Tensor:
        gradients = self._use.per_example(start, stop)
        weights = self._weights.spread(gradients.dim() - 1)
        return gradients * weights.to(gradients.device, gradients.dtype)


class Several(PerExampleGradient):
    """The same parameter used in different ways in one forward pass; its gradients are summed before the norm."""

    def __init__(self, uses: Sequence[PerExampleGradient]) -> None:
        self.uses = uses
        self.examples = uses[0].examples
        self._by_parts = False

    def per_example(self, start: int, stop: int) -> Tensor:
        total = self.uses[0].per_example(start, stop).clone()
        for use in self.uses[1:]:
            total += use.per_example(start, stop)
        return total

    def norms(self, block: Block) -> Norms:
        measured = super().norms(block)
        errors = [use.masked_error(block) for use in self.uses]
        known = [error for error in errors if error is not None]
        self._by_parts = len(known) == len(errors)
        if not self._by_parts:
            return measured
        error, mass = torch.stack(known).sum(0)
        # Adding the formed parts up rounds as well, once for each.
        error = error + len(known) * UNIT[self._dtype] * mass
        terms = sum(use.terms for use in self.uses)
        return Norms(measured.square, (measured.square.sqrt() + error).square(), mass, terms)

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        if not self._by_parts:
            return super().weighted_sum(weights, block, allowance)
        return torch.stack([use.weighted_sum(weights, block).double() for use in self.uses]).sum(0)

    @property
    def _dtype(self) -> torch.dtype:
        return self.per_example(0, 0).dtype


def as_rows(gradients: Tensor) -> Tensor:
    """One row per example, also for a parameter of no dimensions."""
    return gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]


def no_longer(square: Tensor, measured: Tensor) -> Tensor:
    """Factors ≤ 1 that bring vectors of squared norm ``square`` to at most the norm that was measured before."""
    factor = (measured / square).sqrt_().clamp_(max=1.0)
    return torch.where(square > 0, factor, torch.ones_like(factor))


def row_norms(gradients: Tensor, rows: int) -> Tensor:
    """(examples, rows): the norm of every row of every gradient, in double precision."""
    parts = gradients.reshape(len(gradients) * rows, -1)
    return squared_norms(parts).sqrt_().view(len(gradients), rows)


def select_last(values: Tensor, index: Tensor) -> Tensor:
    """The entries ``index`` of the last dimension; as a matrix this is several times faster than in more dimensions."""
    flat = values.reshape(-1, values.shape[-1]).index_select(1, index.to(values.device))
    return flat.view(*values.shape[:-1], len(index))


def select_channels(images: Tensor, index: Tensor) -> Tensor:
    """The channels ``index`` of (rows, channels, *space), in the memory format of the images."""
    last = images.movedim(1, -1)
    if images.is_contiguous() or not last.is_contiguous():
        return images.index_select(1, index.to(images.device))
    return select_last(last, index).movedim(-1, 1)


def masses_and_terms(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Σₜ ‖aₜ‖‖bₜ‖ of every example, and in how many positions b is not zero.

    Positions that pad an example to the length of another one are zero, if it does not depend on the other.
    """
    inputs, outputs = (x.reshape(-1, x.shape[-1]) for x in (a, b))
    squares = squared_norms(outputs)
    lengths = norms_above(inputs) * norms_above(outputs, squares)
    return lengths.view(a.shape[:2]).sum(1), (squares > 0).view(b.shape[:2]).sum(1)


def measured_again(found: tuple[Tensor, Tensor], measure: Callable[[Tensor], Norms]) -> tuple[Tensor, Tensor]:
    """``found``, squared norms and what bounds them, with those of ``measure`` for examples in which they differ.

    Only for those: what is found of an example must not depend on another one.
    """
    sure = found[0].isfinite() & (found[1] <= (1 + MATERIAL) * found[0] + NOTHING)
    if not anywhere(~sure):
        return found
    rows = (~sure).nonzero().flatten()
    square, above = (tensor.clone() for tensor in found)
    for part in torch.split(rows, AGAIN):
        norms = measure(part)
        square[part], above[part] = norms.square, norms.above
    return square, above
