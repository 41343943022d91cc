"""Gaussian noise, from a cryptographic keystream by default.

In secure mode the noisy value is rounded to a lattice that depends on the noise's scale alone. Rounding a Gaussian sum
to a fixed lattice is post-processing, and the same lattice points can be reached from every input, so the low bits of a
floating-point result say nothing about the sum behind it. The noise itself is computed in double precision, whose grain
is about 2⁻²⁸ of a lattice step. What is left out is the tail beyond 9.4 standard deviations: a pair of draws falls
there with probability 2⁻⁶⁴, so n released values lie within n·2⁻⁶⁵ in total variation of exact Gaussian noise.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.randomness import Keystream
from tacit.release.device_noise import BLOCK, MadeThere, normals, works_on

_CHUNK = 32 * BLOCK
_PIECE = 1 << 12
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_HOST = ("cpu", "mps")  # mps has no double precision
LATTICE_BITS = 24
"""The lattice step is the noise's standard deviation, rounded down to a power of two, times 2 to minus this."""


class Noise(Protocol):
    """A source of Gaussian noise."""

    secure: bool
    """Whether the noise is cryptographic: unpredictable, never repeated, safe in its low bits."""

    def begin(self, index: int) -> None:
        """Prepare the noise of the release with this place in the ledger."""

    def add(self, values: Tensor, scale: float, factor: float) -> None:
        """values ← factor · (values + N(0, scale²)), independently in each element, in place."""

    def add_part(self, values: Tensor, start: int, rows: int, scale: float, factor: float) -> None:
        """The same to a part, from row ``start`` on, of a tensor of so many ``rows`` of which others hold the rest."""

    def move(
        self,
        codes: Tensor,
        rows: Tensor,
        deviations: Tensor,
        means: Tensor | None = None,
        factor: float = 1.0,
    ) -> None:
        """codes[rows[i]] ← codes[rows[i]] + round(factor · means[i] + N(0, deviations[i]²)), in place.

        ``codes`` are whole numbers modulo 2³² in a table (rows, width), contiguous; ``rows`` are different from each
        other; ``deviations`` has one number per row, ``means`` one per element, both in double precision.
        """

    def uniform(self, count: int) -> Tensor:
        """Independent uniform numbers in [0, 1), in steps of 2⁻⁵³, in double precision."""


class SecureNoise:
    """Noise from a keystream under a fresh key, on a lattice."""

    secure = True

    def __init__(self) -> None:
        self._stream = Keystream()
        self._buffer = bytearray(8 * _CHUNK + 15)
        self._there: dict[torch.device, MadeThere | None] = {}

    def begin(self, index: int) -> None:
        """Nothing to do: the keystream continues and never repeats."""

    def add(self, values: Tensor, scale: float, factor: float) -> None:
        """values ← factor · round(values + N(0, scale²)), rounded to the lattice of ``scale``, in place."""
        if scale == 0:
            values.mul_(factor)
            return
        if values.device.type not in _HOST:
            self._add_there(values.detach(), scale, factor)
            return
        dense = _in_memory_order(values.detach())
        flat = dense.to("cpu").contiguous().view(-1)
        step = lattice(scale)
        for start in range(0, flat.numel(), _CHUNK):
            part = flat[start : start + _CHUNK]
            blocks = -(-part.numel() // BLOCK)
            self._stream.fill(self._buffer, 8 * BLOCK * blocks)
            if _native is not None and part.dtype in _native:
                _native[part.dtype](
                    part.data_ptr(), part.numel(), _address(self._buffer), scale, step, factor
                )
            else:
                noisy = part.double() + scale * _of_buffer(self._buffer)[: part.numel()]
                part.copy_((noisy / step).round_().mul_(step * factor))
        if flat.data_ptr() != dense.data_ptr():
            dense.copy_(flat.view(dense.shape))

    def add_part(self, values: Tensor, start: int, rows: int, scale: float, factor: float) -> None:
        """As ``add``: the key of every process is its own, so no two of them draw the same noise."""
        self.add(values, scale, factor)

    def _add_there(self, values: Tensor, scale: float, factor: float) -> None:
        """The same on a device: noise is made there, added there and rounded there."""
        grain = lattice(scale)
        drawn = self._normals_on(values.device, values.numel()).view(values.shape)
        noisy = values.double().add_(drawn, alpha=scale)
        values.copy_((noisy / grain).round_().mul_(grain * factor))

    def _normals_on(self, device: torch.device, count: int) -> Tensor:
        """Standard normal numbers on a device; from the host where the device cannot make them."""
        if device not in self._there:
            self._there[device] = MadeThere(device) if device.type not in _HOST and works_on(device) else None
        made = self._there[device]
        return self._normals(count).to(device) if made is None else made.take(count)

    def move(
        self,
        codes: Tensor,
        rows: Tensor,
        deviations: Tensor,
        means: Tensor | None = None,
        factor: float = 1.0,
    ) -> None:
        """codes[rows[i]] ← codes[rows[i]] + round(factor · means[i] + N(0, deviations[i]²)), in place."""
        width = codes.shape[1]
        if _native_move is None or codes.device.type != "cpu":
            _move(codes, rows, deviations, means, factor, partial(self._normals_on, codes.device))
            return
        rows, deviations = rows.contiguous(), deviations.contiguous()
        means = None if means is None else means.contiguous()
        for start in range(0, len(rows) * width, _CHUNK):
            count = min(_CHUNK, len(rows) * width - start)
            self._stream.fill(self._buffer, 8 * BLOCK * -(-count // BLOCK))
            _native_move(
                codes.data_ptr(),
                rows.data_ptr(),
                deviations.data_ptr(),
                None if means is None else means.data_ptr(),
                factor,
                width,
                start,
                count,
                _address(self._buffer),
            )

    def uniform(self, count: int) -> Tensor:
        """Independent uniform numbers in [0, 1)."""
        return torch.from_numpy(self._stream.uniform(count))

    def _normals(self, count: int) -> Tensor:
        parts = []
        for start in range(0, count, _CHUNK):
            wanted = min(_CHUNK, count - start)
            self._stream.fill(self._buffer, 8 * BLOCK * -(-wanted // BLOCK))
            parts.append(_of_buffer(self._buffer)[:wanted])
        return torch.cat(parts)


class SeededNoise:
    """Reproducible noise for experiments. Whoever knows the seed can subtract it: a run with it is not for release."""

    secure = False

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator()

    def begin(self, index: int) -> None:
        """The noise of a release depends on the seed and its place in the ledger, which is never used twice."""
        digest = hashlib.blake2b(f"{self._seed} {index}".encode(), digest_size=8).digest()
        self._generator.manual_seed(int.from_bytes(digest, "little"))

    def add(self, values: Tensor, scale: float, factor: float) -> None:
        """values ← factor · (values + N(0, scale²)), in place; the same noise whatever type the sum is held in."""
        if scale:
            drawn = torch.empty(values.shape, dtype=torch.float64).normal_(
                0, scale, generator=self._generator
            )
            values.add_(drawn.to(values.device))
        values.mul_(factor)

    def add_part(self, values: Tensor, start: int, rows: int, scale: float, factor: float) -> None:
        """The part of the noise that ``add`` gives the whole tensor, so that it does not depend on the parts."""
        noise = torch.zeros((rows, *values.shape[1:]), dtype=torch.float64)
        self.add(noise, scale, 1.0)
        values.add_(noise[start : start + len(values)].to(values.device)).mul_(factor)

    def move(
        self,
        codes: Tensor,
        rows: Tensor,
        deviations: Tensor,
        means: Tensor | None = None,
        factor: float = 1.0,
    ) -> None:
        """codes[rows[i]] ← codes[rows[i]] + round(factor · means[i] + N(0, deviations[i]²)), in place."""

        def normals(count: int) -> Tensor:
            return torch.empty(count, dtype=torch.float64).normal_(generator=self._generator)

        _move(codes, rows, deviations, means, factor, normals)

    def uniform(self, count: int) -> Tensor:
        """Independent uniform numbers in [0, 1)."""
        return torch.rand(count, dtype=torch.float64, generator=self._generator)


def _in_memory_order(values: Tensor) -> Tensor:
    """The same elements with the largest stride first: a channels-last tensor is then contiguous, without a copy."""
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True))


def lattice(scale: float) -> float:
    """The lattice step for noise of standard deviation ``scale``: a power of two, public."""
    return 2.0 ** (math.floor(math.log2(scale)) - LATTICE_BITS)


def _of_buffer(buffer: bytearray) -> Tensor:
    """The normal numbers that whole blocks of a keystream give."""
    words = 2 * (len(buffer) // 8 // BLOCK * BLOCK)
    return normals(torch.frombuffer(buffer, dtype=torch.int32, count=words))


def read_rows(codes: Tensor, rows: Tensor, step: float) -> Tensor:
    """step · codes[rows] in single precision, for a ``step`` that is a power of two."""
    if _native_read is None or codes.device.type != "cpu":
        return _read_rows(codes, rows, step)
    found = torch.empty(len(rows), codes.shape[1], device=codes.device)
    rows = rows.contiguous()
    _native_read(codes.data_ptr(), rows.data_ptr(), *found.shape, step, found.data_ptr())
    return found


def _read_rows(codes: Tensor, rows: Tensor, step: float) -> Tensor:
    """The tensor form of read_rows in noise.c, some rows at a time."""
    found = torch.empty(len(rows), codes.shape[1], device=codes.device)
    for start in range(0, len(rows), _PIECE):
        part = slice(start, start + _PIECE)
        found[part] = codes.index_select(0, rows[part])
    return found.mul_(step)


def _move(
    codes: Tensor,
    rows: Tensor,
    deviations: Tensor,
    means: Tensor | None,
    factor: float,
    normals: Callable[[int], Tensor],
) -> None:
    """The tensor form of move_rows in noise.c, some rows at a time."""
    width = codes.shape[1]
    step = max(1, _CHUNK // width)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        index = rows[part]
        moved = normals(len(index) * width).view(-1, width).to(codes.device) * deviations[part, None]
        if means is not None:
            moved = factor * means[part] + moved
        moves = (codes[index].long() + moved.round_().long()) & 0xFFFFFFFF
        codes[index] = torch.where(moves >= 1 << 31, moves - (1 << 32), moves).to(codes.dtype)


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _compiled(name: str, *arguments: Any) -> ctypes._NamedFuncPointer | None:
    """A function of the compiled part, where that could be built."""
    for path in Path(__file__).parent.glob("_noise*.so"):
        try:
            function: ctypes._NamedFuncPointer = getattr(ctypes.CDLL(str(path)), name)
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = arguments, None
        return function
    return None


def _load_native() -> dict[torch.dtype, ctypes._NamedFuncPointer] | None:
    """The compiled form of ``add``, where it could be built and gives the same."""
    given = (_POINTER, _COUNT, _POINTER, *[ctypes.c_double] * 3)
    single, double = _compiled("add_noise_float", *given), _compiled("add_noise_double", *given)
    if single is None or double is None or not _agrees(double):
        return None
    return {torch.float32: single, torch.float64: double}


def _load_move() -> ctypes._NamedFuncPointer | None:
    """The compiled form of ``_move``, where it could be built and gives the same."""
    function = _compiled("move_rows", *[_POINTER] * 4, ctypes.c_double, *[_COUNT] * 3, _POINTER)
    return function if function is not None and _moves(function) else None


def _moves(function: ctypes._NamedFuncPointer) -> bool:
    """Whether compiled moves are those of the tensor form, also where codes go past their ends."""
    buffer = bytearray(np.random.default_rng(0).integers(0, 2**64, BLOCK, np.uint64).tobytes())
    rows, width = torch.tensor([2, 0]), 3
    means = torch.tensor([[0.4, -0.6, 2.0**31], [1e9, -(2.0**40), 7.0]], dtype=torch.float64)
    deviations = torch.tensor([0.0, 1e6], dtype=torch.float64)
    expected = torch.full((3, width), 2**31 - 1, dtype=torch.int32)
    found = expected.clone()
    _move(expected, rows, deviations, means, 1.5, lambda count: _of_buffer(buffer)[:count])
    function(
        found.data_ptr(),
        rows.data_ptr(),
        deviations.data_ptr(),
        means.data_ptr(),
        1.5,
        width,
        0,
        2 * width,
        _address(buffer),
    )
    return torch.equal(found, expected)


def _load_read() -> ctypes._NamedFuncPointer | None:
    """The compiled form of ``read_rows``, where it could be built and gives the same."""
    function = _compiled("read_rows", _POINTER, _POINTER, _COUNT, _COUNT, ctypes.c_float, _POINTER)
    return function if function is not None and _reads(function) else None


def _reads(function: ctypes._NamedFuncPointer) -> bool:
    """Whether compiled reads are those of the tensor form, also where a code has more bits than a float."""
    codes = torch.tensor(
        [[0, -1, 3], [2**31 - 1, -(2**31), 2**24 + 1], [7, 2**30 + 33, -9]], dtype=torch.int32
    )
    rows, step = torch.tensor([2, 0, 1, 1]), 2.0**-20
    found = torch.full((len(rows), codes.shape[1]), math.nan)
    function(codes.data_ptr(), rows.data_ptr(), *found.shape, step, found.data_ptr())
    return torch.equal(found, _read_rows(codes, rows, step))


def _agrees(function: ctypes._NamedFuncPointer) -> bool:
    """Whether compiled noise is what the tensor form gives, also at the ends of the range, whatever compiled it."""
    words = np.random.default_rng(0).integers(0, 2**64, BLOCK, np.uint64)
    words[:4], words[4:8] = (0, 1, 0xFFF, 0x1000), 2**64 - 1
    buffer = bytearray(words.tobytes())
    values = torch.zeros(BLOCK, dtype=torch.float64)
    function(values.data_ptr(), BLOCK, _address(buffer), 1.0, 2.0**-40, 1.0)
    return bool(torch.allclose(values, _of_buffer(buffer), rtol=0, atol=1e-11))


_native = _load_native()
_native_move = _load_move()
_native_read = _load_read()
