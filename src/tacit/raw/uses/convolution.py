"""Gradients of a convolution's kernel, from layer inputs and output gradients.

Everything happens channels-last: a window of the input is then one run of memory, and the gradient of the kernel
comes out as (out, *window, in), which is how a channels-last kernel lies in memory.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.raw.uses.base import Use, squared_norms
from tacit.support import Block, Kind

WINDOW_TILE = 175_000
"""Elements of unfolded windows formed at once; about the size of a second-level cache."""


@dataclass(frozen=True)
class Geometry:
    """The numbers that define a convolution, one per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Convolution(Use):
    """Inputs ``a`` (rows, in, *space) and output gradients ``b`` (rows, out, *space); an example owns whole rows."""

    def __init__(
        self, a: Tensor, b: Tensor, geometry: Geometry, kernel: Sequence[int], examples: int
    ) -> None:
        self.a, self.b, self.geometry = a, b, geometry
        self.kernel = tuple(kernel)
        self.examples = examples
        self.views = len(a) // examples if examples else 1
        self._kept: Tensor | None = None
        self._flipped = False

    def per_example(self, start: int, stop: int) -> Tensor:
        tile = self._gradients(self.b, start, stop)
        return _kernel_first(tile.view(stop - start, *self._shape(self.b.shape[1])))

    def active(self, start: int, stop: int, block: Block) -> Tensor:
        gradients = self.per_example(start, stop)
        return gradients.flatten(1) if self._is_sliced(block) else block.gather_batch(gradients).flatten(1)

    def norms_squared(self, block: Block) -> Tensor:
        self.b = self._active_rows(block)
        if not self.examples:
            return self.b.new_zeros(0)
        keep = block.size * self.examples <= self.a.numel() + self.b.numel()
        if block.kind is not Kind.COORDINATES and not keep and self._ghost_is_cheaper():
            return self._ghost_norms()
        self._flipped = self._unfold_gradients_is_cheaper(block)
        index = _channels_last_index(block, self.b.device) if self._gathers(block) else None
        kept = self.b.new_empty(self.examples, block.size) if keep else None
        norms = self.b.new_empty(self.examples)
        for start, stop in self._ranges():
            tile = (self._flipped_gradients if self._flipped else self._gradients)(self.b, start, stop)
            if index is not None:
                tile = tile.index_select(1, index)
            norms[start:stop] = squared_norms(tile)
            if kept is not None:
                kept[start:stop] = tile
        self._kept = kept
        return norms

    def weighted_sum(self, weights: Tensor, block: Block) -> Tensor:
        if self._kept is None:
            return self._weight_gradient(weights, block)
        total = weights @ self._kept
        if self._gathers(block):
            return total.view(block.compact_shape)
        if self._flipped:
            window = self.kernel
            total = total.view(*window, self.b.shape[1], self.a.shape[1]).flip(tuple(range(len(window))))
            return total.movedim((-2, -1), (0, 1))
        return _kernel_first(total.view(1, *self._shape(block.compact_shape[0]))).squeeze(0)

    # The choice of method -----------------------------------------------------------------------------------------

    def _active_rows(self, block: Block) -> Tensor:
        if block.kind is not Kind.ROWS or self.geometry.groups > 1 or self._is_sliced(block):
            return self.b
        return self.b.index_select(1, block.index.to(self.b.device))

    def _is_sliced(self, block: Block) -> bool:
        return self.b.shape[1] < block.shape[0]

    def _gathers(self, block: Block) -> bool:
        """Whether the active coordinates are picked out of gradients that also hold silent ones."""
        return block.kind is Kind.COORDINATES or (block.kind is Kind.ROWS and self.geometry.groups > 1)

    def _ghost_is_cheaper(self) -> bool:
        positions = self.b.numel() // (len(self.b) * self.b.shape[1])
        window, outputs = math.prod(self.kernel) * self.a.shape[1], self.b.shape[1]
        return self.geometry.groups == 1 and self.views * positions * (window + outputs) < window * outputs

    def _unfold_gradients_is_cheaper(self, block: Block) -> bool:
        """Few active rows: unfold the thin output gradients instead of the inputs. Needs stride 1 and one group."""
        g = self.geometry
        reach = [d * (k - 1) - p for d, k, p in zip(g.dilation, self.kernel, g.padding, strict=True)]
        possible = g.groups == 1 and all(s == 1 for s in g.stride) and min(reach, default=0) >= 0
        return (
            possible
            and block.kind is not Kind.COORDINATES
            and math.prod(self.kernel) > 1
            and 2 * self.b.shape[1] <= self.a.shape[1]
        )

    def _ranges(self) -> Iterator[tuple[int, int]]:
        positions = self.b.numel() // (len(self.b) * self.b.shape[1])
        per_row = (
            positions
            * math.prod(self.kernel)
            * min(self.a.shape[1], self.b.shape[1] if self._flipped else 1 << 60)
        )
        step = max(1, min(self.examples, WINDOW_TILE // max(1, self.views * per_row)))
        for start in range(0, self.examples, step):
            yield start, min(self.examples, start + step)

    # The kernels --------------------------------------------------------------------------------------------------

    def _shape(self, outputs: int) -> tuple[int, ...]:
        return (outputs, *self.kernel, self.a.shape[1] // self.geometry.groups)

    def _gradients(self, b: Tensor, start: int, stop: int) -> Tensor:
        """(examples, out · window · in), by unfolding the inputs."""
        rows = slice(start * self.views, stop * self.views)
        g = self.geometry
        columns = unfold(self.a[rows], self.kernel, g.stride, g.padding, g.dilation)
        outputs = b[rows].movedim(1, -1).flatten(1, -2)
        _, t, w, c = columns.shape
        if g.groups == 1:
            left = outputs.reshape(stop - start, -1, outputs.shape[-1])
            right = columns.reshape(stop - start, self.views * t, w * c)
        else:
            split = outputs.reshape(stop - start, -1, g.groups, outputs.shape[-1] // g.groups)
            left = split.transpose(1, 2).flatten(0, 1)
            parts = columns.reshape(stop - start, self.views * t, w, g.groups, c // g.groups)
            right = parts.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)
        return torch.bmm(left.transpose(1, 2), right).view(stop - start, -1)

    def _flipped_gradients(self, b: Tensor, start: int, stop: int) -> Tensor:
        """(examples, flipped window · out · in), by unfolding the output gradients of a stride-1 convolution."""
        rows = slice(start * self.views, stop * self.views)
        g = self.geometry
        reach = tuple(d * (k - 1) - p for d, k, p in zip(g.dilation, self.kernel, g.padding, strict=True))
        columns = unfold(b[rows], self.kernel, g.stride, reach, g.dilation)
        inputs = self.a[rows].movedim(1, -1).flatten(1, -2)
        left = columns.reshape(stop - start, -1, columns.shape[2] * columns.shape[3])
        right = inputs.reshape(stop - start, -1, inputs.shape[-1])
        return torch.bmm(left.transpose(1, 2), right).view(stop - start, -1)

    def _ghost_norms(self) -> Tensor:
        norms = self.b.new_empty(self.examples)
        g = self.geometry
        for start, stop in self._ranges():
            rows = slice(start * self.views, stop * self.views)
            columns = unfold(self.a[rows], self.kernel, g.stride, g.padding, g.dilation)
            left = columns.reshape(stop - start, self.views * columns.shape[1], -1)
            right = self.b[rows].movedim(1, -1).reshape(stop - start, -1, self.b.shape[1])
            gram = torch.bmm(left, left.transpose(1, 2))
            gram.mul_(torch.bmm(right, right.transpose(1, 2)))
            norms[start:stop] = gram.sum((1, 2))
        return norms

    def _weight_gradient(self, weights: Tensor, block: Block) -> Tensor:
        g, dims = self.geometry, len(self.kernel)
        per_row = weights.repeat_interleave(self.views).view(-1, *[1] * (dims + 1))
        b = self._active_rows(block)
        shape = (b.shape[1], self.a.shape[1] // g.groups, *self.kernel)
        total: Tensor = torch.ops.aten.convolution_backward(
            b * per_row,
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
        return block.gather(total) if self._gathers(block) else total


def unfold(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """All windows of a batch of images: (rows, positions, window, channels), contiguous."""
    x = x.movedim(1, -1)
    if any(padding):
        sizes = [size + 2 * p for size, p in zip(x.shape[1:-1], padding, strict=True)]
        padded = x.new_zeros(len(x), *sizes, x.shape[-1])
        inside = tuple(slice(p, size - p) for p, size in zip(padding, sizes, strict=True))
        padded[(slice(None), *inside)] = x
        x = padded
    elif not x.is_contiguous():
        x = x.contiguous()
    positions = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[1:-1], kernel, stride, dilation, strict=True)
    ]
    steps = x.stride()[1:-1]
    view = x.as_strided(
        (len(x), *positions, *kernel, x.shape[-1]),
        (
            x.stride(0),
            *[t * s for t, s in zip(steps, stride, strict=True)],
            *[t * d for t, d in zip(steps, dilation, strict=True)],
            1,
        ),
        x.storage_offset(),
    )
    return view.reshape(len(x), math.prod(positions), math.prod(kernel), x.shape[-1])


def _kernel_first(gradients: Tensor) -> Tensor:
    """From (examples, out, *window, in) to (examples, out, in, *window)."""
    return gradients.movedim(-1, 2)


def _like_kernel(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An uninitialised kernel in the memory format of the inputs; only its shape is read."""
    empty = a.new_empty(shape)
    if a.dim() == 4 and a.is_contiguous(memory_format=torch.channels_last) and not a.is_contiguous():
        return empty.to(memory_format=torch.channels_last)
    return empty


_indices: weakref.WeakKeyDictionary[Block, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def _channels_last_index(block: Block, device: torch.device) -> Tensor:
    """The block's active positions in a gradient laid out as (out, *window, in), in the block's own order."""
    by_device = _indices.setdefault(block, {})
    if device not in by_device:
        window = math.prod(block.shape[2:])
        flat = block.flat()
        channel, rest = (flat // window) % block.shape[1], flat % window
        row = flat // (window * block.shape[1])
        by_device[device] = ((row * window + rest) * block.shape[1] + channel).to(device)
    return by_device[device]
