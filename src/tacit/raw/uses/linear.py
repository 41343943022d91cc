"""Gradients of a matrix W in y = W x: gᵢ = Σₜ bᵢₜ aᵢₜᵀ over the positions t of example i."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tacit.raw.uses.base import TILE, Use, squared_norms
from tacit.support import Block, Kind

SPARSE_BELOW = 0.15
"""Below this active ratio the sparse kernels beat dense matrix products (measured: break-even at about 0.2)."""


class Linear(Use):
    """Inputs ``a`` (examples, positions, in) and output gradients ``b`` (examples, positions, out)."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        self.examples = len(a)
        self._kept: Tensor | None = None

    @staticmethod
    def joined(uses: Sequence[Linear]) -> Linear:
        """The sum of several uses of one matrix: their positions side by side."""
        if len(uses) == 1:
            return uses[0]
        return Linear(torch.cat([u.a for u in uses], 1), torch.cat([u.b for u in uses], 1))

    def per_example(self, start: int, stop: int) -> Tensor:
        return torch.bmm(self.b[start:stop].transpose(1, 2), self.a[start:stop])

    def active(self, start: int, stop: int, block: Block) -> Tensor:
        gradients = self.per_example(start, stop)
        return gradients.flatten(1) if self._is_sliced(block) else block.gather_batch(gradients).flatten(1)

    def norms_squared(self, block: Block) -> Tensor:
        self.b = self._active_rows(block)
        a, b = self.a, self.b
        positions, inputs, outputs = a.shape[1], a.shape[2], b.shape[2]
        if block.kind is Kind.COORDINATES:
            if positions == 1:
                return _masked_outer_norms(a[:, 0], b[:, 0], block)
            return self._instantiate(a, b, block)
        if positions == 1:
            return squared_norms(a[:, 0]) * squared_norms(b[:, 0])
        if positions * (inputs + outputs) < 2 * inputs * outputs and not self._worth_keeping(block):
            return _ghost_norms(a, b)
        return self._instantiate(a, b, block)

    def weighted_sum(self, weights: Tensor, block: Block) -> Tensor:
        if self._kept is not None:
            return (weights @ self._kept).view(block.compact_shape)
        b = self._active_rows(block)
        scaled = (b * weights[:, None, None]).flatten(0, 1)
        a = self.a.flatten(0, 1)
        if block.kind is Kind.COORDINATES:
            return _active_products(scaled, a, block)
        return scaled.t() @ a

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        if self.a.shape[1] != 1:
            return super().weighted_absolute_sum(weights, block)
        total = (self.b[:, 0].abs() * weights[:, None]).t() @ self.a[:, 0].abs()
        return total if self._is_sliced(block) else block.gather(total)

    def _active_rows(self, block: Block) -> Tensor:
        if block.kind is not Kind.ROWS or self._is_sliced(block):
            return self.b
        return self.b.index_select(2, block.index.to(self.b.device))

    def _is_sliced(self, block: Block) -> bool:
        return self.b.shape[2] < block.shape[0]

    def _worth_keeping(self, block: Block) -> bool:
        """Whether the active per-example gradients take less memory than the inputs and output gradients."""
        return block.size <= self.a.shape[1] * (self.a.shape[2] + self.b.shape[2])

    def _instantiate(self, a: Tensor, b: Tensor, block: Block) -> Tensor:
        """Form the gradients tile by tile, keep the active part where it is small, and take its norms."""
        norms = a.new_zeros(self.examples)
        kept = a.new_empty(self.examples, block.size) if self._worth_keeping(block) else None
        column = 0
        for rows, index in _row_tiles(block, b.shape[2], a.shape[2]):
            width = index.numel() if index is not None else (rows.stop - rows.start) * a.shape[2]
            step = max(1, TILE // max(1, (rows.stop - rows.start) * a.shape[2]))
            for start in range(0, self.examples, step):
                part = slice(start, min(self.examples, start + step))
                tile = torch.bmm(b[part, :, rows].transpose(1, 2), a[part]).flatten(1)
                if index is not None:
                    tile = tile.index_select(1, index)
                norms[part] += squared_norms(tile)
                if kept is not None:
                    kept[part, column : column + width] = tile
            column += width
        self._kept = kept
        return norms


def _ghost_norms(a: Tensor, b: Tensor) -> Tensor:
    """‖Σₜ bₜaₜᵀ‖² = Σₜₛ (aₜ·aₛ)(bₜ·bₛ), from the two Gram matrices over positions."""
    norms = []
    step = max(1, TILE // (a.shape[1] * a.shape[1]))
    for start in range(0, len(a), step):
        left, right = a[start : start + step], b[start : start + step]
        gram = torch.bmm(left, left.transpose(1, 2))
        norms.append(gram.mul_(torch.bmm(right, right.transpose(1, 2))).sum((1, 2)))
    return torch.cat(norms) if norms else a.new_zeros(0)


def _masked_outer_norms(a: Tensor, b: Tensor, block: Block) -> Tensor:
    """‖M ⊙ (b aᵀ)‖² = b² M a², row by row of a and b, for a 0/1 matrix M."""
    a2, b2 = a.square(), b.square()
    if block.size < SPARSE_BELOW * block.total:
        products = pattern(block, a) @ a2.t().contiguous()
        return products.mul_(b2.t()).sum(0)
    norms = a.new_zeros(len(a))
    for rows, index in _row_tiles(block, b.shape[1], a.shape[1], tile=8 * TILE):
        mask = a.new_zeros((rows.stop - rows.start) * a.shape[1])
        mask[index] = 1
        norms += torch.linalg.vecdot(b2[:, rows] @ mask.view(-1, a.shape[1]), a2)
    return norms


def _active_products(b: Tensor, a: Tensor, block: Block) -> Tensor:
    """The active coordinates of bᵀ a."""
    if block.size < SPARSE_BELOW * block.total and a.shape[0] > 0:
        sampled = torch.sparse.sampled_addmm(pattern(block, a), b.t().contiguous(), a, beta=0.0)
        return sampled.values()
    parts = [
        (b[:, rows].t() @ a).view(-1).index_select(0, index)
        for rows, index in _row_tiles(block, b.shape[1], a.shape[1], tile=8 * TILE)
        if index is not None
    ]
    return torch.cat(parts)


def _row_tiles(
    block: Block, outputs: int, inputs: int, tile: int = TILE
) -> Iterator[tuple[slice, Tensor | None]]:
    """Ranges of rows of at most ``tile`` elements, each with its active positions, or None where all are active."""
    step = max(1, tile // max(1, inputs))
    for start in range(0, outputs, step):
        rows = slice(start, min(outputs, start + step))
        if block.kind is not Kind.COORDINATES:
            yield rows, None
            continue
        low, high = torch.searchsorted(
            block.index, torch.tensor([rows.start * inputs, rows.stop * inputs])
        ).tolist()
        if high > low:
            yield rows, block.index[low:high] - rows.start * inputs


_patterns: weakref.WeakKeyDictionary[Block, dict[tuple[torch.device, torch.dtype], Tensor]]
_patterns = weakref.WeakKeyDictionary()


def pattern(block: Block, like: Tensor) -> Tensor:
    """The block as a sparse 0/1 matrix (rows, row size), built once per block, device and type."""
    by_type = _patterns.setdefault(block, {})
    key = (like.device, like.dtype)
    if key not in by_type:
        inputs = block.total // block.shape[0]
        counts = torch.bincount(block.index // inputs, minlength=block.shape[0])
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            by_type[key] = torch.sparse_csr_tensor(
                starts.to(like.device),
                (block.index % inputs).to(like.device),
                torch.ones(block.size, dtype=like.dtype, device=like.device),
                (block.shape[0], inputs),
                check_invariants=True,
            )
    return by_type[key]
