"""Gradients of a depthwise convolution's kernel: every channel has a small kernel of its own.

They are few (channels · window per example), so they are formed and kept; what counts is to form those of the active
channels only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.raw.gradients.base import Held, select_channels
from tacit.raw.gradients.convolution import Geometry
from tacit.raw.gradients.scratch import scratch
from tacit.raw.units import Bucket
from tacit.support import Block, Kind

TILE = 1 << 17
"""Elements of one shifted product: small enough to stay in cache until it is summed."""


class Depthwise(Held):
    """Inputs ``a`` (rows, channels, *space), output gradients ``b`` of as many channels; an example owns whole rows."""

    def __init__(
        self, a: Tensor, b: Tensor, geometry: Geometry, kernel: Sequence[int], examples: int
    ) -> None:
        self.a, self.b, self.geometry = a, b, geometry
        self.kernel = tuple(kernel)
        self.examples = examples
        self._active: Tensor | None = None

    def together(self, bucket: Bucket) -> Depthwise:
        """The gradients of units: the rows of all their examples side by side."""
        views = len(self.a) // self.examples
        a, b = (bucket.of(x.view(self.examples, views, *x.shape[1:])).flatten(0, 2) for x in (self.a, self.b))
        return Depthwise(a, b, self.geometry, self.kernel, bucket.units)

    keeps = True

    def per_example(self, start: int, stop: int) -> Tensor:
        views = len(self.a) // self.examples
        part = slice(start * views, stop * views)
        gradients = self._gradients(self.a[part], self.b[part], stop - start)
        return gradients.view(stop - start, -1, 1, *self.kernel)

    def _held(self, block: Block) -> Tensor:
        """The active coordinates of the gradients, one row per example, formed at the first call."""
        if self._active is not None:
            return self._active
        a, b = self.a, self.b
        if block.kind in (Kind.ROWS, Kind.COORDINATES):
            window = math.prod(self.kernel)
            channels = block.index if block.kind is Kind.ROWS else torch.unique(block.index // window)
            a, b = select_channels(a, channels), select_channels(b, channels)
        gradients = self._gradients(a, b, self.examples)
        if block.kind is Kind.COORDINATES:
            place = torch.searchsorted(channels, block.index // window)
            gradients = gradients.index_select(1, (place * window + block.index % window).to(a.device))
        self._active = gradients
        return gradients

    def _gradients(self, a: Tensor, b: Tensor, examples: int) -> Tensor:
        """One row (channels · window) per example: for each place of the window a shifted product, summed over space.

        Space comes first in memory, so that products and sums run along rows and channels together.
        """
        g, dims = self.geometry, len(self.kernel)
        sizes = [size + 2 * p for size, p in zip(a.shape[2:], g.padding, strict=True)]
        inside = tuple(slice(p, size - p) for p, size in zip(g.padding, sizes, strict=True))
        columns, space = a.shape[0] * a.shape[1], b.shape[2:]
        total = a.new_empty(math.prod(self.kernel), columns)
        step = max(1, TILE // max(1, math.prod(space) * a.shape[1]))  # whole rows of the batch
        for start in range(0, len(a), step):
            rows = slice(start, min(len(a), start + step))
            part = slice(rows.start * a.shape[1], rows.stop * a.shape[1])
            width = part.stop - part.start
            inputs = scratch("padded inputs", (*sizes, width), a)
            if any(g.padding):
                inputs.zero_()
            shape = (rows.stop - rows.start, a.shape[1])
            inputs[inside].view(*a.shape[2:], *shape).copy_(a[rows].movedim((0, 1), (-2, -1)))
            outputs = scratch("outputs", (*space, width), b)
            outputs.view(*space, *shape).copy_(b[rows].movedim((0, 1), (-2, -1)))
            for place, offset in enumerate(itertools.product(*map(range, self.kernel))):
                window = tuple(
                    slice(o * d, o * d + (size - 1) * s + 1, s)
                    for o, d, s, size in zip(offset, g.dilation, g.stride, space, strict=True)
                )
                product = scratch("product", (*space, width), a)
                torch.mul(inputs[window], outputs, out=product)
                torch.sum(product, dim=tuple(range(dims)), out=total[place, part])
        rows_first = total.view(-1, examples, len(a) // max(1, examples), a.shape[1]).sum(2)
        return rows_first.permute(1, 2, 0).reshape(examples, -1)
