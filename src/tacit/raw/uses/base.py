"""The interface of a use, with defaults that hold for any parameter, in bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tacit.raw.uses.scratch import scratch
from tacit.support import Block, Weights

TILE = 1 << 19
"""Elements of a per-example gradient tile that are formed at once: small enough to stay in cache."""


class Use(ABC):
    """One parameter's per-example gradients over the ``examples`` of a physical batch, in implicit form.

    ``norms_squared(block)`` is always called before ``weighted_sum(weights, block)`` with the same block, so that a
    use may keep what the first has computed for the second.
    """

    examples: int

    @abstractmethod
    def per_example(self, start: int, stop: int) -> Tensor:
        """The gradients of examples ``start`` to ``stop``, of shape (stop − start, *parameter shape)."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor, block: Block) -> Tensor:
        """Σᵢ wᵢ (m ⊙ gᵢ) on the active coordinates, as the block's compact tensor."""

    def weighted(self, weights: Weights) -> Use:
        """The use whose per-example gradients are these times the weights of a soft support."""
        return Weighted(self, weights)

    def active(self, start: int, stop: int, block: Block) -> Tensor:
        """The active coordinates of the gradients of examples ``start`` to ``stop``, one row each."""
        return block.gather_batch(self.per_example(start, stop)).flatten(1)

    def norms_squared(self, block: Block) -> Tensor:
        """‖m ⊙ gᵢ‖² for every example."""
        return torch.cat([squared_norms(self.active(*part, block)) for part in self.parts(block)])

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        """Σᵢ wᵢ |m ⊙ gᵢ| on the active coordinates, as the block's compact tensor (wᵢ ≥ 0)."""
        total = weights.new_zeros(block.size)
        for start, stop in self.parts(block):
            total += weights[start:stop] @ self.active(start, stop, block).abs()
        return total.view(block.compact_shape)

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        """Σᵢ wᵢ ‖gᵢ[r]‖ for every row r of a parameter that is active as a whole (wᵢ ≥ 0)."""
        total = weights.new_zeros(block.row_count)
        for start, stop in self.parts(block):
            rows = self.per_example(start, stop).reshape(stop - start, block.row_count, -1)
            total += weights[start:stop] @ torch.linalg.vector_norm(rows, dim=2)
        return total

    def parts(self, block: Block) -> Iterator[tuple[int, int]]:
        """Ranges of examples whose gradients together are small enough to be formed at once."""
        step = max(1, TILE // max(1, block.total))
        for start in range(0, self.examples, step):
            yield start, min(self.examples, start + step)


class Direct(Use):
    """Per-example gradients that are small enough to be held as they are: biases, scales, shifts, and fallbacks."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.examples = len(gradients)
        self._active: Tensor | None = None

    def per_example(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def weighted(self, weights: Weights) -> Use:
        spread = weights.spread(self.gradients.dim() - 1)
        return Direct(self.gradients * spread.to(self.gradients.device, self.gradients.dtype))

    def norms_squared(self, block: Block) -> Tensor:
        self._active = block.gather_batch(self.gradients).flatten(1)
        return squared_norms(self._active)

    def weighted_sum(self, weights: Tensor, block: Block) -> Tensor:
        active = self._active if self._active is not None else block.gather_batch(self.gradients).flatten(1)
        return (weights @ active).view(block.compact_shape)


class Weighted(Use):
    """Any use, its per-example gradients multiplied by the weights of a soft support as they are formed."""

    def __init__(self, use: Use, weights: Weights) -> None:
        self._use, self._weights = use, weights
        self.examples = use.examples

    def per_example(self, start: int, stop: int) -> Tensor:
        gradients = self._use.per_example(start, stop)
        weights = self._weights.spread(gradients.dim() - 1)
        return gradients * weights.to(gradients.device, gradients.dtype)

    def weighted_sum(self, weights: Tensor, block: Block) -> Tensor:
        total = weights.new_zeros(block.size)
        for start, stop in self.parts(block):
            total += weights[start:stop] @ self.active(start, stop, block)
        return total.view(block.compact_shape)


class Several(Use):
    """The same parameter used in different ways in one forward pass; its gradients are summed before the norm."""

    def __init__(self, uses: Sequence[Use]) -> None:
        self.uses = uses
        self.examples = uses[0].examples

    def per_example(self, start: int, stop: int) -> Tensor:
        total = self.uses[0].per_example(start, stop).clone()
        for use in self.uses[1:]:
            total += use.per_example(start, stop)
        return total

    def weighted_sum(self, weights: Tensor, block: Block) -> Tensor:
        total = self.uses[0].weighted_sum(weights, block)
        for use in self.uses[1:]:
            total = total + use.weighted_sum(weights, block)
        return total


def squared_norms(rows: Tensor) -> Tensor:
    """The squared norm of every row. Long rows go through ``dot``, which is several times faster on a CPU."""
    rows = rows.flatten(1)
    if rows.shape[0] == 1:
        return torch.dot(rows[0], rows[0])[None]
    if rows.shape[0] <= 16 and rows.shape[1] > 2048 and rows.device.type == "cpu":
        return torch.stack([torch.dot(row, row) for row in rows])
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square_()


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


def ghost_norms(a: Tensor, b: Tensor) -> Tensor:
    """‖Σₜ bₜaₜᵀ‖² = Σₜₛ (aₜ·aₛ)(bₜ·bₛ), from the two Gram matrices over the positions of each example."""
    shape = (len(a), a.shape[1], a.shape[1])
    inputs = torch.bmm(a, a.transpose(1, 2), out=scratch("input gram", shape, a))
    outputs = torch.bmm(b, b.transpose(1, 2), out=scratch("output gram", shape, b))
    products = inputs.mul_(outputs)
    # Where the positions cancel, rounding can hide a norm; this margin of its size keeps the result an upper bound.
    margin = 2 * torch.finfo(a.dtype).eps * products.diagonal(dim1=1, dim2=2).sum(1)
    return products.sum((1, 2)) + margin


def keep_limit(ghost_cost: float) -> float:
    """How much memory kept gradients may take, in units of the inputs and output gradients they replace.

    Without a cheap ghost norm, gradients that are not kept must be formed twice, so they may take more.
    """
    return 1.0 if ghost_cost < 0.9 else 2.5
