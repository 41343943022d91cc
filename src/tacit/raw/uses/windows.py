"""Unfolding images into windows, a few at a time, in scratch memory that is set up once per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tacit.raw.uses.scratch import scratch


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
