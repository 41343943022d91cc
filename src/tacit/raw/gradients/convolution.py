"""Per-example gradients of convolutions.

Gradients of a convolution's kernel, from layer inputs and output gradients.

Everything happens channels-last: the gradient of the kernel comes out as (out, *window, in), which is how a
channels-last kernel lies in memory.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from tacit.raw.doubts import anywhere
from tacit.raw.exact import (
    FLUSHED,
    PROBES,
    SMALLEST,
    UNIT,
    Allowance,
    Share,
    norms_above,
    projected,
    spread,
    squared_norms,
    sum_of_products,
    through_probes,
)
from tacit.raw.gradients.base import (
    AGAIN,
    LARGEST_MASS,
    Norms,
    PerExampleGradient,
    measured_again,
    select_channels,
)
from tacit.raw.gradients.compiled import FEW, Problem, available
from tacit.raw.gradients.ghost import ghost_norms
from tacit.raw.gradients.kept import Kept
from tacit.raw.gradients.scratch import scratch
from tacit.raw.units import Bucket
from tacit.support import Block, Kind, Weights


class Windows:
    """The windows of a convolution over images (rows, channels, *space), at most ``step`` images at a time.

    Channels come last: a window's line is then one run of memory, whatever format the images have.
    """

    def __init__(
        self,
        images: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        step: int,
    ) -> None:
        self._images = images.movedim(1, -1)
        self._inside: Tensor | None = None
        source = self._images
        if any(padding) or not source.is_contiguous():
            sizes = [size + 2 * p for size, p in zip(source.shape[1:-1], padding, strict=True)]
            # The border is zeroed once; each chunk overwrites the inside.
            source = scratch("padded", (min(step, len(images)), *sizes, source.shape[-1]), images).zero_()
            self._inside = source[
                (slice(None), *(slice(p, size - p) for p, size in zip(padding, sizes, strict=True)))
            ]
        places = [
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(source.shape[1:-1], kernel, stride, dilation, strict=True)
        ]
        steps = source.stride()[1:-1]
        self._views = source.as_strided(
            (len(source), *places, *kernel, source.shape[-1]),
            (
                source.stride(0),
                *[t * s for t, s in zip(steps, stride, strict=True)],
                *[t * d for t, d in zip(steps, dilation, strict=True)],
                1,
            ),
            source.storage_offset(),
        )
        self.positions, self.size, self.channels = math.prod(places), math.prod(kernel), source.shape[-1]
        self._columns = scratch("windows", (min(step, len(images)), *self._views.shape[1:]), images)

    def of(self, start: int, stop: int) -> Tensor:
        """(images, positions, window, channels), valid until the next call."""
        count = stop - start
        if self._inside is not None:
            self._inside[:count].copy_(self._images[start:stop])
            views = self._views[:count]
        else:
            views = self._views[start:stop]
        return self._columns[:count].copy_(views).view(count, self.positions, self.size, self.channels)


WINDOW_TILE = 400_000
"""Elements of unfolded windows formed at once: about a second-level cache, and few enough calls."""


GHOST_BELOW = 0.5
"""Cost of the ghost norm over that of forming gradients up to which it is worth a sum by other means: compiled code
forms gradients twice for the price that the library has for one sum and its verification."""


class Order(Enum):
    """How the numbers of a kernel's gradient follow each other in memory."""

    OUTPUTS_FIRST = "outputs, window, channels"
    OUTPUTS_LAST = "window, channels, outputs"
    MIRRORED = "mirrored window, outputs, channels"


@dataclass(frozen=True)
class Geometry:
    """The numbers that define a convolution, one per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Convolution(PerExampleGradient):
    """Inputs ``a`` (rows, in, *space) and output gradients ``b`` (rows, out, *space); an example owns whole rows.

    ``allowance`` is what the sum will be verified against, where that is known while norms are measured: the windows
    are then unfolded once for both.
    """

    allowance: Allowance | None = None

    def __init__(
        self, a: Tensor, b: Tensor, geometry: Geometry, kernel: Sequence[int], examples: int
    ) -> None:
        self.a, self.b, self.geometry = a, b, geometry
        self.kernel = tuple(kernel)
        self.channels = a.shape[1] // geometry.groups
        self.examples = examples
        self.views = len(a) // examples
        self.terms = self.views * math.prod(b.shape[2:])
        self._kept: Kept | None = None
        self._order = Order.OUTPUTS_FIRST
        self._problem: Problem | None = None
        self._seen: tuple[Tensor, Tensor] | None = None

    def weighted(self, weights: Weights) -> PerExampleGradient:
        if weights.axis > 1:
            return super().weighted(weights)
        values = weights.values.to(self.a.device, self.a.dtype)
        a, b = self.a, self.b
        if weights.axis == 0:
            b = b * values.view(-1, *[1] * (b.dim() - 2))
        else:  # every group reads its own input channels through the same columns of the kernel
            a = a * values.repeat(self.geometry.groups).view(-1, *[1] * (a.dim() - 2))
        return Convolution(a, b, self.geometry, self.kernel, self.examples)

    def together(self, bucket: Bucket) -> Convolution:
        """The gradients of units: the rows of all their examples side by side."""
        a, b = (
            bucket.of(x.view(self.examples, self.views, *x.shape[1:])).flatten(0, 2) for x in (self.a, self.b)
        )
        return Convolution(a, b, self.geometry, self.kernel, bucket.units)

    @property
    def keeps(self) -> bool:
        """Whether what was measured is what will be summed: it is kept, or formed a second time bit by bit alike."""
        return self._kept is not None or self._problem is not None

    def per_example(self, start: int, stop: int) -> Tensor:
        views = self.views
        part = Convolution(
            self.a[start * views : stop * views],
            self.b[start * views : stop * views],
            self.geometry,
            self.kernel,
            stop - start,
        )
        gradients = _Unfolded(part, flipped=False, step=stop - start).gradients(0, stop - start, None)
        shape = (stop - start, self.b.shape[1], *self.kernel, self.channels)
        return gradients.view(shape).movedim(-1, 2).clone()

    def active(self, start: int, stop: int, block: Block) -> Tensor:
        gradients = self.per_example(start, stop)
        return gradients.flatten(1) if self._is_sliced(block) else block.gather_batch(gradients).flatten(1)

    def forming_error(self) -> Tensor:
        mass = self._masses(None)
        terms = (self.b != 0).any(1).view(self.examples, -1).sum(1)
        return torch.stack([(terms + 1) * UNIT[self.a.dtype] * mass, mass])

    def _masses(self, block: Block | None) -> Tensor:
        """Σₜ ‖m ⊙ bₜaₜᵀ‖ over the positions t of each example, aₜ their windows; without a block, of everything."""
        mask = None
        if block is not None and self._gathers(block):
            mask = block.mask().to(self.a.device).movedim(1, -1).flatten(1).double()
        squares = self.a.new_zeros(len(self.a), self._positions, dtype=torch.float64)
        for images, outputs, rows, windows in self._factors(self.b):
            # Upwards, as norms_above does: what this thread takes for zero may not be zero for another.
            b, a = (x.abs().double().add_(FLUSHED * SMALLEST[x.dtype]).square_() for x in (rows, windows))
            if mask is None:
                part = b.sum(1) * a.sum(1)
            else:
                # Where nothing is active a number counts for nothing, not even one that is infinite.
                lines, columns = (mask[outputs].any(dim) for dim in (1, 0))
                part = (b[:, lines] @ mask[outputs][lines][:, columns]).mul_(a[:, columns]).sum(1)
            squares[images] += part.view(-1, self._positions)
        lengths = squares.sqrt_().mul_(1 + 2.0**-40).add_(math.sqrt(SMALLEST[torch.float64]))
        return lengths.view(self.examples, -1).sum(1)

    def _mass_beside(self, squares: Tensor, block: Block, sizes: Tensor | None = None) -> Tensor:
        """The masses, or what bounds them where that is too little beside the norm to change a weight.

        A place of the inputs is in no more windows than the kernel has places, so √places·‖a‖‖b‖ is a bound.
        ``sizes`` are ‖a‖² and ‖b‖² of every example, where they have been computed.
        """
        a, b = (_in_memory(x).reshape(self.examples, -1) for x in (self.a, self.b))
        squared = [None, None] if sizes is None else list(sizes.unbind(1))
        if self._order is Order.MIRRORED:
            squared.reverse()
        mass = (
            norms_above(a, squared[0])
            .mul_(norms_above(b, squared[1]))
            .mul_(math.sqrt(math.prod(self.kernel)))
        )
        large = mass > LARGEST_MASS * squares.sqrt()
        for part in torch.split(large.nonzero().flatten(), AGAIN) if anywhere(large) else ():
            mass[part] = self._of(part, self.a.dtype)._masses(block)
        return mass

    def norms(self, block: Block) -> Norms:
        self.b = self._active_rows(block)
        ghost = self._ghost_cost() if block.kind is not Kind.COORDINATES else math.inf
        if ghost >= GHOST_BELOW and available(
            self.a.dtype, self.a.device, len(self.kernel), self.geometry.groups
        ):
            return self._measured_by_compiled(block, ghost)
        keep = self._worth_keeping(block, ghost)
        if self._unfold_gradients_is_cheaper(block) and (keep or ghost >= 1):
            self._order = Order.MIRRORED
        step = self._step()
        probes = None
        if (
            self.allowance is not None
            and not keep
            and self._order is not Order.MIRRORED
            and self.geometry.groups == 1
        ):
            width = self.channels * math.prod(self.kernel)
            probes = self.allowance.probes(width, 0, self.a.device)
        unfolded = _Unfolded(self, flipped=self._order is Order.MIRRORED, step=step, probes=probes)
        ranges = [(start, min(self.examples, start + step)) for start in range(0, self.examples, step)]
        if ghost < 1 and not keep:
            norms = Norms.joined([ghost_norms(*unfolded.factors(*part)) for part in ranges])
            self._measured, self._seen = norms.above, unfolded.seen
            return norms
        self._kept = Kept(self.examples, block.size, step, self.b) if keep else None
        index = _index_in(block, self._order, self.b.device) if self._gathers(block) else None
        squares = self.b.new_empty(self.examples, dtype=torch.float64)
        for start, stop in ranges:
            place = self._kept.part(start, stop) if self._kept is not None else None
            tile = unfolded.gradients(start, stop, place if index is None else None)
            if index is not None:
                place = scratch("active", (stop - start, block.size), tile) if place is None else place
                tile = torch.index_select(tile, 1, index, out=place)
            squares[start:stop] = squared_norms(tile)
        mass = self._mass_beside(squares, block)
        if self._kept is not None:
            # What is kept is what is summed, and its mass is not needed. Without it an example would have another
            # weight here than in company of another size, where it is not kept, or not formed.
            self.a = self.b = self.b.new_empty(0)
            return Norms(squares, squares, mass)
        above = (squares.sqrt() + (self.terms + 1) * UNIT[self.a.dtype] * mass).square()
        if self.a.dtype is not torch.float64:
            squares, above = measured_again(
                (squares, above), lambda rows: self._of(rows, torch.float64).norms(block)
            )
        self._measured, self._seen = squares, unfolded.seen
        return Norms(squares, above, mass, self.terms)

    def _worth_keeping(self, block: Block, ghost: float) -> bool:
        return block.size * self.examples <= _keep_limit(ghost) * (self.a.numel() + self.b.numel())

    def _measured_by_compiled(self, block: Block, ghost: float) -> Norms:
        """Norms of gradients that are formed one by one, and where they are too large to be kept, again for the sum.

        Either way what is measured is what is summed: neither its error nor its number of terms is needed.
        """
        g = self.geometry
        a, b = (x.movedim(1, -1).contiguous() for x in (self.a, self.b))
        if self._unfold_gradients_is_cheaper(block) and a.shape[-1] > FEW:
            problem = Problem(b, a, self.examples, self.kernel, g.stride, _reach(g, self.kernel), g.dilation)
            self._order = Order.MIRRORED
        else:
            problem = Problem(a, b, self.examples, self.kernel, g.stride, g.padding, g.dilation)
            self._order = Order.OUTPUTS_FIRST if problem.by_output else Order.OUTPUTS_LAST
        index = _index_in(block, self._order, a.device) if self._gathers(block) else None
        # With few positions, forming a gradient again takes no longer than reading one that was kept.
        if self._worth_keeping(block, ghost if ghost >= 1 else 0.0):
            kept = Kept(self.examples, block.size, 1, b)
            squares, sizes = problem.measured(index, kept)
            mass = self._mass_beside(squares, block, sizes)
            self._kept, self.a, self.b = kept, b.new_empty(0), b.new_empty(0)
        else:
            squares, sizes = problem.measured(index, None)
            mass = self._mass_beside(squares, block, sizes)
            self._problem, self._measured = problem, squares
        return Norms(square=squares, above=squares, mass=mass)

    def _of(self, examples: Tensor, dtype: torch.dtype) -> Convolution:
        """The gradients of some examples."""
        a, b = (
            x.view(self.examples, self.views, *x.shape[1:])[examples].flatten(0, 1).to(dtype)
            for x in (self.a, self.b)
        )
        return Convolution(a, b, self.geometry, self.kernel, len(examples))

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        if self._kept is not None:
            return self._in_order(self._kept.weighted_sum(weights), block)
        if self._problem is not None:
            index = _index_in(block, self._order, self.b.device) if self._gathers(block) else None
            return self._in_order(self._problem.weighted_sum(weights, index), block)
        return self._weight_gradient(weights, block, allowance)

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        if self._kept is None:
            return super().weighted_absolute_sum(weights, block)
        return self._in_order(self._kept.weighted_sum(weights, absolute=True), block)

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        if self._kept is None:
            return super().weighted_row_norms(weights, block)
        before = {
            Order.OUTPUTS_FIRST: 1,
            Order.OUTPUTS_LAST: math.prod(self.kernel) * self.channels,
            Order.MIRRORED: math.prod(self.kernel),
        }
        return self._kept.weighted_row_norms(weights, (before[self._order], block.row_count, -1))

    def _in_order(self, total: Tensor, block: Block) -> Tensor:
        """The block's compact tensor, from a sum of gradients as they lie in memory."""
        if self._gathers(block):
            logical = _logical_order(block, self._order, total.device)
            return total.index_select(0, logical).view(block.compact_shape)
        if self._order is Order.MIRRORED:
            window = tuple(range(len(self.kernel)))
            return total.view(*self.kernel, -1, self.channels).flip(window).movedim((-2, -1), (0, 1))
        if self._order is Order.OUTPUTS_LAST:
            return total.view(*self.kernel, self.channels, -1).movedim((-1, -2), (0, 1))
        return total.view(-1, *self.kernel, self.channels).movedim(-1, 1)

    # The choice of method -----------------------------------------------------------------------------------------

    def _active_rows(self, block: Block) -> Tensor:
        if block.kind is not Kind.ROWS or self.geometry.groups > 1 or self._is_sliced(block):
            return self.b
        return select_channels(self.b, block.index)

    def _is_sliced(self, block: Block) -> bool:
        return self.b.shape[1] < block.shape[0]

    def _gathers(self, block: Block) -> bool:
        """Whether the active coordinates are picked out of gradients that also hold silent ones."""
        return block.kind is Kind.COORDINATES or (block.kind is Kind.ROWS and self.geometry.groups > 1)

    @property
    def _positions(self) -> int:
        return math.prod(self.b.shape[2:])

    def _ghost_cost(self) -> float:
        """Operations of the ghost norm over those of forming the gradients."""
        if self.geometry.groups > 1:
            return math.inf
        window, outputs = math.prod(self.kernel) * self.a.shape[1], self.b.shape[1]
        return self.views * self._positions * (window + outputs) / (window * outputs)

    def _unfold_gradients_is_cheaper(self, block: Block) -> bool:
        """Few active rows: unfold the thin output gradients instead of the inputs. Needs stride 1 and one group."""
        g = self.geometry
        possible = g.groups == 1 and all(s == 1 for s in g.stride) and min(_reach(g, self.kernel)) >= 0
        return (
            possible
            and block.kind is not Kind.COORDINATES
            and math.prod(self.kernel) > 1
            and 2 * self.b.shape[1] <= self.a.shape[1]
        )

    def _step(self) -> int:
        """How many examples to unfold at once."""
        channels = self.b.shape[1] if self._order is Order.MIRRORED else self.a.shape[1]
        per_example = self.views * self._positions * math.prod(self.kernel) * channels
        return max(1, min(self.examples, WINDOW_TILE // max(1, per_example)))

    def _weight_gradient(self, weights: Tensor, block: Block, allowance: Share | None) -> Tensor:
        """The weighted sum as one weight gradient of the library, verified, or else in double precision."""
        b = self._active_rows(block)
        weights = weights.double().repeat_interleave(self.views)
        total: Tensor | None = None
        if allowance is not None and b.dtype is torch.float32:
            total = self._library_gradient(b, weights)
            matrix = total.movedim(1, -1).reshape(b.shape[1], -1)
            if not allowance.accepts(matrix, lambda probes: self._through_probes(b, weights, probes)):
                total = None
        if total is None:
            total = self._double_gradient(b, weights)
        return block.gather(total) if self._gathers(block) else total

    def _library_gradient(self, b: Tensor, weights: Tensor) -> Tensor:
        g, dims = self.geometry, len(self.kernel)
        shape = (b.shape[1], self.channels, *self.kernel)
        total: Tensor = torch.ops.aten.convolution_backward(
            b * weights.to(b.dtype).view(-1, *[1] * (dims + 1)),
            self.a,
            _like_kernel(self.a, shape),
            None,
            g.stride,
            g.padding,
            g.dilation,
            False,
            [0] * dims,
            g.groups,
            [False, True, False],
        )[1]
        return total

    def _through_probes(self, b: Tensor, weights: Tensor, probes: Tensor) -> Tensor:
        """The true kernel gradient, (out, window · in), times the probes."""
        if self._seen is not None and probes is self._seen[0]:
            rows = b.movedim(1, -1).reshape(-1, b.shape[1])
            return spread(rows, self._seen[1] * self._by_row(weights)[:, None])
        seen = torch.zeros(b.shape[1], PROBES, dtype=torch.float64, device=b.device)
        for images, outputs, rows, inputs in self._factors(b):
            seen[outputs] += through_probes(rows, inputs, self._by_row(weights[images]), probes)
        return seen

    def _double_gradient(self, b: Tensor, weights: Tensor) -> Tensor:
        width = self.channels * math.prod(self.kernel)
        total = torch.zeros(b.shape[1], width, dtype=torch.float64, device=b.device)
        for images, outputs, rows, inputs in self._factors(b):
            total[outputs] += sum_of_products(rows, inputs, self._by_row(weights[images]))
        return total.view(-1, *self.kernel, self.channels).movedim(-1, 1)

    def _by_row(self, weights: Tensor) -> Tensor:
        """The weights of images at each of their positions."""
        return weights.repeat_interleave(self._positions)

    def _factors(self, b: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """For a few images and each group: the images, its outputs, and gradients and windows by position."""
        g, width = self.geometry, self.channels * math.prod(self.kernel)
        per_row = math.prod(b.shape[2:]) * math.prod(self.kernel) * self.a.shape[1]
        step = max(1, min(len(b), WINDOW_TILE // max(1, per_row)))
        unfolded = Windows(self.a, self.kernel, g.stride, g.padding, g.dilation, step)
        last, size = b.movedim(1, -1).reshape(len(b), -1, b.shape[1]), b.shape[1] // g.groups
        for start in range(0, len(b), step):
            rows = last[start : start + step].flatten(0, 1)
            images = slice(start, min(len(b), start + step))
            windows = unfolded.of(start, min(len(b), start + step)).flatten(0, 1)
            for group in range(g.groups):
                outputs = slice(group * size, (group + 1) * size)
                channels = slice(group * self.channels, (group + 1) * self.channels)
                inputs = windows[:, :, channels].reshape(len(rows), width)
                yield images, outputs, rows[:, outputs], inputs


class _Unfolded:
    """A convolution as products of two matrices per example, one of them unfolded into windows.

    ``flipped`` unfolds the output gradients of a stride-1 convolution instead of the inputs; the window then comes out
    mirrored, and before the outputs. ``seen`` are the probes, if there are any, and the windows of all positions in
    their directions, once all of them have been asked for in turn.
    """

    def __init__(self, use: Convolution, *, flipped: bool, step: int, probes: Tensor | None = None) -> None:
        g, rows = use.geometry, step * use.views
        self._probes, self._projected = probes, list[Tensor]()
        self._groups, self._views, self._examples, self._flipped = g.groups, use.views, use.examples, flipped
        if flipped:
            self._windows = Windows(use.b, use.kernel, g.stride, _reach(g, use.kernel), g.dilation, rows)
            plain = use.a
        else:
            self._windows = Windows(use.a, use.kernel, g.stride, g.padding, g.dilation, rows)
            plain = use.b
        self._plain = plain.movedim(1, -1).reshape(use.examples, -1, plain.shape[1])

    def factors(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients over positions; needs one group and unflipped windows."""
        windows = self._unfold(start, stop)
        return windows.view(stop - start, -1, windows.shape[2] * windows.shape[3]), self._plain[start:stop]

    def gradients(self, start: int, stop: int, out: Tensor | None) -> Tensor:
        """One row per example: (out · window · in), or (window · out · in) if flipped; in ``out`` or scratch memory."""
        count = stop - start
        windows, plain = self._unfold(start, stop), self._plain[start:stop]
        size, channels = windows.shape[2:]
        if self._groups > 1:
            left = (
                plain.reshape(count, -1, self._groups, plain.shape[2] // self._groups)
                .transpose(1, 2)
                .flatten(0, 1)
            )
            split = windows.view(count, -1, size, self._groups, channels // self._groups)
            right = split.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)
        else:
            left, right = plain, windows.view(count, -1, size * channels)
            if self._flipped:
                left, right = right, left
        shape = (len(left), left.shape[2], right.shape[2])
        place = scratch("gradients", shape, left) if out is None else out.view(shape)
        return torch.bmm(left.transpose(1, 2), right, out=place).view(count, -1)

    @property
    def seen(self) -> tuple[Tensor, Tensor] | None:
        return None if self._probes is None else (self._probes, torch.cat(self._projected))

    def _unfold(self, start: int, stop: int) -> Tensor:
        windows = self._windows.of(start * self._views, stop * self._views)
        if self._probes is not None:
            self._projected.append(projected(windows.flatten(2).flatten(0, 1), self._probes))
        return windows


def _in_memory(images: Tensor) -> Tensor:
    """The images with channels first or last, whichever is how they lie in memory."""
    return images if images.is_contiguous() else images.movedim(1, -1)


def _reach(geometry: Geometry, kernel: Sequence[int]) -> tuple[int, ...]:
    """The padding that turns a stride-1 convolution around."""
    return tuple(d * (k - 1) - p for d, k, p in zip(geometry.dilation, kernel, geometry.padding, strict=True))


def _like_kernel(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An uninitialised kernel in the memory format of the inputs; only its shape is read."""
    empty = a.new_empty(shape)
    if a.dim() == 4 and a.is_contiguous(memory_format=torch.channels_last) and not a.is_contiguous():
        return empty.to(memory_format=torch.channels_last)
    return empty


_indices: weakref.WeakKeyDictionary[Block, dict[tuple[Order, torch.device], tuple[Tensor, Tensor]]] = (
    weakref.WeakKeyDictionary()
)


def _index_in(block: Block, order: Order, device: torch.device) -> Tensor:
    """The block's active positions in a gradient that lies in memory in this order, ascending."""
    return _both_orders(block, order, device)[0]


def _logical_order(block: Block, order: Order, device: torch.device) -> Tensor:
    """Where each of the block's coordinates, in the block's own order, stands in the order of memory."""
    return _both_orders(block, order, device)[1]


def _both_orders(block: Block, order: Order, device: torch.device) -> tuple[Tensor, Tensor]:
    known = _indices.setdefault(block, {})
    if (order, device) not in known:
        window = math.prod(block.shape[2:])
        flat = block.flat()
        channel, rest = (flat // window) % block.shape[1], flat % window
        row = flat // (window * block.shape[1])
        if order is Order.OUTPUTS_LAST:
            places = (rest * block.shape[1] + channel) * block.shape[0] + row
        else:
            places = (row * window + rest) * block.shape[1] + channel
        in_memory, ranks = places.sort()
        known[order, device] = (in_memory.to(device), ranks.argsort().to(device))
    return known[order, device]


def _keep_limit(ghost_cost: float) -> float:
    """How much memory kept gradients may take, in units of the inputs and output gradients they replace.

    Gradients that are kept need no second pass over the inputs, for their sum and its verification. Where the ghost
    norm is not much cheaper than forming them, they may take more.
    """
    return 1.0 if ghost_cost < 0.75 else 2.5
