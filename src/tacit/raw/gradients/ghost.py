"""Norms of sums of outer products from the Gram matrices of their factors, without forming the sums.

Compiled code looks at every pair of positions once and stores no matrix; without it, tensor operations do the same.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tacit.raw.exact import SMALLEST, UNIT, norms_above
from tacit.raw.gradients.base import Norms, measured_again
from tacit.raw.gradients.scratch import scratch
from tacit.raw.gradients.threads import share_out

GRAM_CHUNK = 64
"""Features of one part of a Gram matrix; the parts are added up in double precision. Compiled code takes longer parts,
but adds no more numbers in a row."""


def ghost_norms(a: Tensor, b: Tensor) -> Norms:
    """‖Σₜ bₜaₜᵀ‖² = Σₜₛ (aₜ·aₛ)(bₜ·bₛ), from the two Gram matrices over the positions of each example.

    A product aₜ·aₛ is off by at most (k+1)u‖aₜ‖‖aₛ‖, k its length in single precision and u the unit roundoff, so
    the norm is off by at most the sum of both constants times (Σₜ‖aₜ‖‖bₜ‖)², plus what underflows. Adding up chunks and
    positions in double precision counts beside double precision alone. Where all that is much
    beside the norm, or a product overflows, the example is measured again in double precision: by its own numbers
    alone, and to the norm that other ways to measure it find, since its company may decide which way is taken.
    """
    square = _squares(a, b).clamp_(min=0)
    lengths = [norms_above(x.reshape(-1, x.shape[-1])).view(x.shape[:2]) for x in (a, b)]
    mass = (lengths[0] * lengths[1]).sum(1)
    unit, smallest = UNIT[a.dtype], SMALLEST[a.dtype]
    added = a.shape[1] ** 2 + sum(x.shape[2] / GRAM_CHUNK for x in (a, b))
    relative = sum(min(x.shape[2], GRAM_CHUNK) + 2 for x in (a, b)) * unit + added * UNIT[torch.float64]
    error = relative * mass.square()
    for x, others in ((a, lengths[1]), (b, lengths[0])):
        error = error + 2 * x.shape[2] * smallest * others.sum(1).square()
    above = square + error
    if a.dtype is not torch.float64:
        square, above = measured_again(
            (square, above), lambda rows: ghost_norms(a[rows].double(), b[rows].double())
        )
    return Norms(square, above, mass, a.shape[1])


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Σₜₛ (aₜ·aₛ)(bₜ·bₛ) of every example, in double precision."""
    function = _native() if a.dtype is torch.float32 and a.device.type == "cpu" else None
    return _by_tensors(a, b) if function is None else _compiled(function, a, b)


def _compiled(function: ctypes._NamedFuncPointer, a: Tensor, b: Tensor) -> Tensor:
    a, b = a.contiguous(), b.contiguous()
    squares = torch.empty(len(a), dtype=torch.float64)

    def work(start: int, stop: int) -> None:
        left, right, out = a[start:stop], b[start:stop], squares[start:stop]
        function(left.data_ptr(), right.data_ptr(), *left.shape, right.shape[2], out.data_ptr())

    share_out(len(a), work)
    return squares


def _by_tensors(a: Tensor, b: Tensor) -> Tensor:
    return _gram("input gram", a).mul_(_gram("output gram", b)).sum((1, 2))


def _gram(purpose: str, x: Tensor) -> Tensor:
    """xₜ·xₛ for all positions of every example: products of chunks of features, added up in double precision."""
    shape = (len(x), x.shape[1], x.shape[1])
    total = scratch(purpose, shape, x.new_empty(0, dtype=torch.float64))
    for start in range(0, x.shape[2], GRAM_CHUNK):
        chunk = x[:, :, start : start + GRAM_CHUNK]
        part = torch.bmm(chunk, chunk.transpose(1, 2), out=scratch("gram chunk", shape, x))
        total.copy_(part) if start == 0 else total.add_(part)
    return total


@cache
def _library() -> ctypes._NamedFuncPointer | None:
    """The compiled function, where it could be built and this machine can run it."""
    for path in Path(__file__).parent.glob("_ghost*.so"):
        try:
            library = ctypes.CDLL(str(path))
            function, can = library.ghost_squares, library.ghost_squares_available
        except (OSError, AttributeError):
            continue
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        function.argtypes, function.restype = [pointer, pointer, count, count, count, count, pointer], None
        can.restype = count
        if can():
            found: ctypes._NamedFuncPointer = function
            return found
    return None


@cache
def _native() -> ctypes._NamedFuncPointer | None:
    """The same, if it gives what tensor operations give."""
    function = _library()
    return function if function is not None and _agrees(function) else None


def _agrees(function: ctypes._NamedFuncPointer) -> bool:
    draw = torch.Generator().manual_seed(0)
    for positions, inputs, outputs in ((1, 3, 20), (7, 40, 5), (13, 600, 33)):
        a, b = (torch.randn(3, positions, width, generator=draw) for width in (inputs, outputs))
        expected = _by_tensors(a.double(), b.double())
        if not torch.allclose(_compiled(function, a, b), expected, rtol=1e-5):
            return False
    return True
