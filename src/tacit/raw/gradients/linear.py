"""Gradients of a matrix W in y = W x: gᵢ = Σₜ bᵢₜ aᵢₜᵀ over the positions t of example i."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tacit.raw.doubts import anywhere
from tacit.raw.exact import (
    FLUSHED,
    LONGEST,
    PROBES,
    SMALLEST,
    UNIT,
    Share,
    norms_above,
    sampled_products,
    squared_norms,
    sum_of_products,
    sum_of_rows,
    through_probes,
)
from tacit.raw.gradients.base import (
    AGAIN,
    LARGEST_MASS,
    TILE,
    Norms,
    PerExampleGradient,
    masses_and_terms,
    measured_again,
    select_last,
)
from tacit.raw.gradients.ghost import ghost_norms
from tacit.raw.gradients.kept import Kept
from tacit.raw.gradients.scratch import scratch
from tacit.raw.products import linear, product, products
from tacit.raw.units import Bucket
from tacit.support import Block, Kind, Weights

SPARSE_BELOW = 0.15
"""Below this active ratio the sparse kernels beat dense matrix products."""
PROBED_ABOVE = 2 * PROBES
"""Inputs and outputs above which verifying a product is cheaper than computing it in double precision."""


SCALED_AT_ONCE = 256
"""Outputs whose gradients are scaled, or squared, at once: a copy of all of them takes memory."""
PROBED_BEYOND = 1 << 23
"""Products of single numbers up to which the calls that verify a product take longer than double precision does."""
WHOLE_KEPT_UP_TO = 1.75
SCATTERED_KEPT_UP_TO = 2.5
"""Kept gradients take less memory than so many times the inputs and output gradients that they replace.

They cost the product that an ordinary step has too, and a pass for their sum. A ghost norm costs its share of that
product (four sevenths at most, beyond this limit), then the product all the same for the sum, and a pass to verify it.
Scattered coordinates have no ghost norm.
"""


class Linear(PerExampleGradient):
    """Inputs ``a`` (examples, positions, in) and output gradients ``b`` (examples, positions, out)."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        self.examples, self.terms = a.shape[:2]
        self._kept: Kept | None = None

    @staticmethod
    def joined(uses: Sequence[Linear]) -> Linear:
        """The sum of several uses of one matrix: their positions side by side."""
        if len(uses) == 1:
            return uses[0]
        return Linear(torch.cat([u.a for u in uses], 1), torch.cat([u.b for u in uses], 1))

    def weighted(self, weights: Weights) -> Linear:
        values = weights.values.to(self.a.device, self.a.dtype)
        if weights.axis == 0:
            return Linear(self.a, self.b * values)
        return Linear(self.a * values, self.b)

    def together(self, bucket: Bucket) -> Linear:
        """The gradients of units: the positions of all their examples side by side."""
        return Linear(bucket.of(self.a).flatten(1, 2), bucket.of(self.b).flatten(1, 2))

    @property
    def keeps(self) -> bool:
        """Whether what was measured is kept, and is what will be summed."""
        return self._kept is not None

    def per_example(self, start: int, stop: int) -> Tensor:
        return torch.bmm(self.b[start:stop].transpose(1, 2), self.a[start:stop])

    def active(self, start: int, stop: int, block: Block) -> Tensor:
        gradients = self.per_example(start, stop)
        return gradients.flatten(1) if self._is_sliced(block) else block.gather_batch(gradients).flatten(1)

    def forming_error(self) -> Tensor:
        mass, terms = masses_and_terms(self.a, self.b)
        return torch.stack([(terms + 1) * UNIT[self.a.dtype] * mass, mass])

    def masked_error(self, block: Block) -> Tensor:
        if block.kind is not Kind.COORDINATES or not self.a.numel():
            return self.forming_error()
        # What is summed over positions on the active coordinates are terms M ⊙ bₜaₜᵀ, each with its own norm.
        lengths = _masked_outer_norms(self.a.flatten(0, 1), self.b.flatten(0, 1), block).mass
        mass = lengths.view(self.a.shape[:2]).sum(1)
        terms = (self.b != 0).any(2).sum(1)
        return torch.stack([(terms + 1) * UNIT[self.a.dtype] * mass, mass])

    def norms(self, block: Block) -> Norms:
        self.b = self._active_rows(block)
        a, b = self.a, self.b
        positions = a.shape[1]
        if block.kind is Kind.COORDINATES:
            if positions == 1:
                return _masked_outer_norms(a[:, 0], b[:, 0], block)
            return self._instantiate(a, b, block)
        if positions == 1:
            inputs, outputs = squared_norms(a[:, 0]), squared_norms(b[:, 0])
            mass = norms_above(a[:, 0], inputs) * norms_above(b[:, 0], outputs)
            return Norms(inputs * outputs, mass.square(), mass)
        if not self._worth_keeping(block):
            step = max(1, TILE // (positions * positions))
            starts = range(0, self.examples, step)
            norms = Norms.joined([ghost_norms(a[s : s + step], b[s : s + step]) for s in starts])
            self._measured = norms.above
            return norms
        return self._instantiate(a, b, block)

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        if self._kept is not None:
            return self._kept.weighted_sum(weights).view(block.compact_shape)
        b, a = self._active_rows(block).flatten(0, 1), self.a.flatten(0, 1)
        per_row = weights.double().repeat_interleave(self.a.shape[1])
        if block.kind is Kind.COORDINATES and block.size < SPARSE_BELOW * block.total:
            return _sampled_products(b, a, per_row, block)
        total = verified_product(b, a, per_row, allowance)
        return block.gather(total) if block.kind is Kind.COORDINATES else total

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        if self._kept is not None:
            return self._kept.weighted_sum(weights, absolute=True).view(block.compact_shape)
        if self.a.shape[1] != 1:
            return super().weighted_absolute_sum(weights, block)
        total = sum_of_products(_scaled(self.b[:, 0].abs(), weights.double()), self.a[:, 0].abs())
        return total if self._is_sliced(block) else block.gather(total)

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        if self._kept is not None:
            return self._kept.weighted_row_norms(weights, (1, block.row_count, -1))
        if self.a.shape[1] != 1:
            return super().weighted_row_norms(weights, block)
        inputs = squared_norms(self.a[:, 0]).sqrt_()
        return sum_of_rows(weights.double() * inputs, self.b[:, 0], absolute=True)

    def _active_rows(self, block: Block) -> Tensor:
        if block.kind is not Kind.ROWS or self._is_sliced(block):
            return self.b
        return select_last(self.b, block.index_on(self.b.device))

    def _is_sliced(self, block: Block) -> bool:
        return self.b.shape[2] < block.shape[0]

    def _reached(self, block: Block) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients without the columns and rows in which nothing is active."""
        if block.kind is not Kind.COORDINATES:
            return self.a, self.b
        rows, columns = _lines(block, self.a.shape[2])
        a = self.a if len(columns) == self.a.shape[2] else select_last(self.a, columns)
        return a, self.b if len(rows) == self.b.shape[2] else select_last(self.b, rows)

    def _worth_keeping(self, block: Block) -> bool:
        limit = SCATTERED_KEPT_UP_TO if block.kind is Kind.COORDINATES else WHOLE_KEPT_UP_TO
        return block.size < limit * self.a.shape[1] * (self.a.shape[2] + self.b.shape[2])

    def _instantiate(self, a: Tensor, b: Tensor, block: Block) -> Norms:
        """Form the gradients tile by tile, keep the active part where it is small, and take its norms."""
        squares = a.new_zeros(self.examples, dtype=torch.float64)
        step = max(1, TILE // (b.shape[2] * a.shape[2]))
        if self._worth_keeping(block):
            self._kept = Kept(self.examples, block.size, step, a)
        column = 0
        for rows, index in _row_tiles(block, b.shape[2], a.shape[2], a.device):
            height = rows.stop - rows.start
            width = height * a.shape[2] if index is None else index.numel()
            for start in range(0, self.examples, step):
                stop = min(self.examples, start + step)
                shape = (stop - start, height, a.shape[2])
                place = (
                    self._kept.part(start, stop)[:, column : column + width]
                    if self._kept is not None
                    else None
                )
                direct = place is not None and index is None and place.is_contiguous()
                out = place.view(shape) if direct and place is not None else scratch("gradients", shape, a)
                tile = products(b[start:stop, :, rows].transpose(1, 2), a[start:stop], out).flatten(1)
                if index is not None:
                    tile = torch.index_select(tile, 1, index, out=scratch("active", (stop - start, width), a))
                squares[start:stop] += squared_norms(tile)
                if place is not None and not direct:
                    place.copy_(tile)
            column += width
        error, mass = self._error_beside(squares, block)
        above = (squares.sqrt() + error).square()
        if self._kept is not None:
            # What is kept is what is summed: neither its mass nor its error is needed. Without them an example would
            # have another weight here than in shorter company, where it is not kept, or not formed.
            self.a = self.b = a.new_empty(0)
            return Norms(squares, above if block.kind is Kind.COORDINATES else squares, mass)
        self._measured = squares
        return Norms(squares, above, mass, a.shape[1])

    def _error_beside(self, squares: Tensor, block: Block) -> Tensor:
        """How far forming a gradient may round it, and its mass.

        Where its mass on all rows and columns that are reached could change a weight, that on the active coordinates
        counts, for which there is more to compute.
        """
        found = Linear(*self._reached(block)).forming_error()
        if block.kind is Kind.COORDINATES:
            large = found[1] > LARGEST_MASS * squares.sqrt()
            for part in torch.split(large.nonzero().flatten(), AGAIN) if anywhere(large) else ():
                found[:, part] = Linear(self.a[part], self.b[part]).masked_error(block)
        return found


def _scaled(b: Tensor, weights: Tensor) -> Tensor:
    """The rows of ``b`` times the weights, in double precision: no product is lost, however small."""
    return b.double() * weights[:, None]


def verified_product(b: Tensor, a: Tensor, weights: Tensor, allowance: Share | None) -> Tensor:
    """Σₖ wₖ bₖ aₖᵀ over the rows k: in single precision where that is found to be close enough, or else in double."""
    large = min(a.shape[1], b.shape[1]) > PROBED_ABOVE and a.numel() * b.shape[1] > PROBED_BEYOND
    if allowance is not None and a.dtype is torch.float32 and large:
        total, scaled = a.new_empty(b.shape[1], a.shape[1]), weights.to(b.dtype)[:, None]
        for start in range(0, b.shape[1], SCALED_AT_ONCE):  # the scaled copy is then no matrix of its own
            columns = slice(start, start + SCALED_AT_ONCE)
            product((b[:, columns] * scaled).t(), a, out=total[columns])
        if allowance.accepts(total, lambda probes: through_probes(b, a, weights, probes)):
            return total
    return sum_of_products(b, a, weights)


def _masked_outer_norms(a: Tensor, b: Tensor, block: Block) -> Norms:
    """‖M ⊙ (b aᵀ)‖² = b² M a², row by row of a and b, for a 0/1 matrix M: sums of positive terms.

    Each of them is off by its share of (in + out + 4)u, and squares below the smallest normal number are lost.
    """
    lengths = norms_above(a), norms_above(b)
    smallest, relative = SMALLEST[a.dtype], (a.shape[1] + b.shape[1] + 4) * UNIT[a.dtype]
    flushed = math.sqrt(a.shape[1]) * lengths[1] + math.sqrt(b.shape[1]) * lengths[0]
    flushed = FLUSHED * smallest * flushed
    if relative > 2.0**-12:
        found = _masked_outer_norms(a.double(), b.double(), block)
        return Norms(found.square, found.above, found.mass + flushed)
    lost = smallest * (a.shape[1] + 2) * (b.shape[1] + 2) * (1 + lengths[0].square() + lengths[1].square())
    if block.size < SPARSE_BELOW * block.total:
        products = pattern(block, a) @ a.t().clone(memory_format=torch.contiguous_format).square_()
        for start in range(0, len(products), SCALED_AT_ONCE):
            rows = slice(start, start + SCALED_AT_ONCE)
            products[rows].mul_(b[:, rows].t().square())
        squares = products.sum(0).double()
    else:
        b2 = b.square()
        squares = a.new_zeros(len(a), dtype=torch.float64)
        step = max(1, TILE // a.shape[1])
        for rows, index in _row_tiles(block, b.shape[1], a.shape[1], a.device, tile=8 * TILE):
            mask = a.new_zeros((rows.stop - rows.start) * a.shape[1])
            mask[index] = 1
            columns = mask.view(-1, a.shape[1]).t().contiguous()
            # Few examples at a time, so that their squares are still in the cache when they are multiplied.
            for part in (slice(start, start + step) for start in range(0, len(a), step)):
                squares[part] += linear(a[part].square(), columns.t(), None).mul_(b2[part, rows]).sum(1)
    above = squares * (1 + 2 * relative) + lost
    if a.dtype is not torch.float64:
        squares, above = measured_again(
            (squares, above),
            lambda rows: _masked_outer_norms(a[rows].double(), b[rows].double(), block),
        )
    return Norms(squares, above, above.sqrt() + flushed)


def _sampled_products(b: Tensor, a: Tensor, weights: Tensor, block: Block) -> Tensor:
    """The active coordinates of Σₖ wₖ bₖ aₖᵀ, few among all, in double precision."""
    if not len(a):
        return a.new_zeros(block.size, dtype=torch.float64)
    total: Tensor | None = None
    for start in range(0, len(a), LONGEST):
        part = slice(start, start + LONGEST)
        sampled = sampled_products(b[part], a[part], weights[part], pattern(block, a))
        total = sampled if total is None else total + sampled
    assert total is not None
    return total


def _row_tiles(
    block: Block, outputs: int, inputs: int, device: torch.device, tile: int = TILE
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
            yield rows, block.index_on(device)[low:high] - rows.start * inputs


_reached_lines: weakref.WeakKeyDictionary[Block, tuple[Tensor, Tensor]] = weakref.WeakKeyDictionary()


def _lines(block: Block, inputs: int) -> tuple[Tensor, Tensor]:
    """The rows and the columns in which something is active, found once per block."""
    found = _reached_lines.get(block)
    if found is None:
        found = torch.unique(block.index // inputs), torch.unique(block.index % inputs)
        _reached_lines[block] = found
    return found


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
