"""Per-example gradients of convolutions by compiled code, where it could be built and agrees with the tensor form.

It forms one example's gradient at a time, in the cache, without unfolding its windows in memory; and as cheaply a
second time for the sum, from the same numbers in the same order. So what is summed is what was measured.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tacit.raw.gradients.kept import Kept
from tacit.raw.gradients.threads import share_out

FEW = 8
"""Outputs up to which the windows are worth unfolding: the numbers of a window then fill the vectors."""


@dataclass(frozen=True)
class Problem:
    """Images (rows, *space, channels), gradients (rows, *space, outputs), and the convolution between them.

    An example owns consecutive rows. Its gradient has the shape (*kernel, channels, outputs), or with few outputs
    (outputs, *kernel, channels).
    """

    images: Tensor
    gradients: Tensor
    examples: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def by_output(self) -> bool:
        """Whether outputs come before the window."""
        return self.gradients.shape[-1] <= FEW < self.images.shape[-1] * math.prod(self.kernel)

    @property
    def size(self) -> int:
        """Numbers of one gradient."""
        return math.prod(self.kernel) * self.images.shape[-1] * self.gradients.shape[-1]

    def measured(self, index: Tensor | None, keep: Kept | None) -> tuple[Tensor, Tensor]:
        """Squared norms in double precision: of every example's active numbers, and (examples, 2) of its two factors.

        The active numbers go to ``keep`` if given, which is to be filled from example to example.
        """
        squares = torch.empty(self.examples, dtype=torch.float64)
        sizes = torch.empty(self.examples, 2, dtype=torch.float64)

        def work(start: int, stop: int) -> None:
            for first, last in [(start, stop)] if keep is None else keep.ranges(start, stop):
                kept = None if keep is None else keep.part(first, last)
                self._run(first, last, index, kept=kept, squares=squares[first:last], sizes=sizes[first:last])

        share_out(self.examples, work)
        return squares, sizes

    def weighted_sum(self, weights: Tensor, index: Tensor | None) -> Tensor:
        """Σᵢ wᵢ gᵢ over the examples, of the active numbers, in double precision."""
        weights = weights.to(torch.float64).contiguous()
        width = self.size if index is None else index.numel()
        parts: dict[int, Tensor] = {}

        def work(start: int, stop: int) -> None:
            parts[start] = torch.zeros(width, dtype=torch.float64)
            self._run(start, stop, index, weights=weights[start:stop], total=parts[start])

        share_out(self.examples, work)
        found = [parts[start] for start in sorted(parts)]
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    def _run(
        self,
        start: int,
        stop: int,
        index: Tensor | None,
        *,
        weights: Tensor | None = None,
        kept: Tensor | None = None,
        squares: Tensor | None = None,
        sizes: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        views = len(self.images) // self.examples
        flat = 2 - len(self.kernel)

        def plane(sizes: Sequence[int], missing: int) -> list[int]:
            return [missing] * flat + list(sizes)

        shape = [
            stop - start,
            views,
            *plane(self.images.shape[1:-1], 1),
            self.images.shape[-1],
            *plane(self.gradients.shape[1:-1], 1),
            self.gradients.shape[-1],
            *plane(self.kernel, 1),
            *plane(self.stride, 1),
            *plane(self.padding, 0),
            *plane(self.dilation, 1),
            int(self.by_output),
        ]
        function = _library()
        assert function is not None
        failed = function(
            self.images[start * views :].data_ptr(),
            self.gradients[start * views :].data_ptr(),
            (ctypes.c_int64 * len(shape))(*shape),
            None if index is None else index.data_ptr(),
            0 if index is None else index.numel(),
            *(None if x is None else x.data_ptr() for x in (weights, kept, squares, sizes, total)),
        )
        if failed:
            raise MemoryError("Memory does not suffice for the gradient of a single example.")


def available(dtype: torch.dtype, device: torch.device, dimensions: int, groups: int) -> bool:
    """Whether compiled code serves such a convolution."""
    return (
        dtype is torch.float32
        and device.type == "cpu"
        and dimensions <= 2
        and groups == 1
        and _native() is not None
    )


@cache
def _library() -> ctypes._NamedFuncPointer | None:
    """The compiled function, where it could be built and this machine can run it."""
    for path in Path(__file__).parent.glob("_windows*.so"):
        try:
            library = ctypes.CDLL(str(path))
            function, can = library.window_gradients, library.window_gradients_available
        except (OSError, AttributeError):
            continue
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = [*[pointer] * 4, count, *[pointer] * 5]
        function.restype = can.restype = count
        if can():
            found: ctypes._NamedFuncPointer = function
            return found
    return None


@cache
def _native() -> ctypes._NamedFuncPointer | None:
    """The same, if it gives what tensor operations give."""
    function = _library()
    return function if function is not None and _agrees() else None


def _agrees() -> bool:
    draw = torch.Generator().manual_seed(0)
    cases = (
        # channels, size, outputs, kernel, stride, padding, dilation
        (1, 12, 16, (8, 8), (2, 2), (3, 3), (1, 1)),
        (16, 7, 40, (4, 2), (1, 2), (0, 1), (1, 1)),
        (3, 9, 19, (3, 3), (1, 1), (1, 1), (2, 2)),
        (5, 9, 3, (3, 3), (2, 1), (1, 0), (1, 1)),
    )
    for channels, size, outputs, kernel, stride, padding, dilation in cases:
        images = torch.randn(6, size, size, channels, generator=draw)
        space = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)
        ]
        gradients = torch.randn(6, *space, outputs, generator=draw)
        problem = Problem(images, gradients, 3, kernel, stride, padding, dilation)
        expected = _by_tensors(problem)
        index = torch.randperm(problem.size, generator=draw)[: problem.size // 3].sort()[0]
        weights = torch.rand(3, generator=draw, dtype=torch.float64)
        factors = torch.stack([x.double().view(3, -1).square().sum(1) for x in (images, gradients)], 1)
        for active, rows in ((None, expected), (index, expected[:, index])):
            keep = Kept(3, rows.shape[1], 1, images)
            squares, sizes = problem.measured(active, keep)
            kept = keep.part(0, 3)
            tolerance = 1e-5 * float(rows.abs().max())
            summed = problem.weighted_sum(weights, active)
            if not (
                torch.allclose(kept.double(), rows, rtol=0, atol=tolerance)
                and torch.allclose(squares, kept.double().square().sum(1), rtol=1e-12)
                and torch.allclose(sizes, factors, rtol=1e-12)
                and torch.allclose(
                    summed, weights @ kept.double(), rtol=0, atol=1e-12 * float(rows.abs().sum())
                )
            ):
                return False
    return True


def _by_tensors(problem: Problem) -> Tensor:
    """The gradients in double precision, as products of unfolded windows."""
    views = len(problem.images) // problem.examples
    windows = torch.nn.functional.unfold(
        problem.images.double().movedim(-1, 1),
        problem.kernel,
        problem.dilation,
        problem.padding,
        problem.stride,
    )
    rows, window = len(windows), math.prod(problem.kernel)
    windows = windows.view(rows, -1, window, windows.shape[2]).transpose(1, 2).flatten(1, 2)
    products = windows @ problem.gradients.double().flatten(1, 2)
    summed = products.view(problem.examples, views, *products.shape[1:]).sum(1)
    return (summed.transpose(1, 2) if problem.by_output else summed).flatten(1)
