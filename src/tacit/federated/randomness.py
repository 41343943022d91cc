"""Where local mechanisms take their randomness from.

A mechanism asks for uniform numbers and nothing else, so the same code runs in a simulation, on a seeded
``numpy.random.Generator`` that anyone can replay, and on a client, on the operating system's cryptographic
source that nobody can.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Uniforms(Protocol):
    """A source of independent uniform numbers in [0, 1); ``numpy.random.Generator`` is one."""

    def random(self, size: int) -> NDArray[np.float64]:
        """Return ``size`` independent draws, each a multiple of 2⁻⁵³ in [0, 1)."""
        ...


class SystemUniforms:
    """Uniform numbers from the operating system's cryptographic generator: for values that leave a client."""

    def random(self, size: int) -> NDArray[np.float64]:
        """Return ``size`` independent draws, each a multiple of 2⁻⁵³ in [0, 1)."""
        words = np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_indices(uniforms: Uniforms, size: int, bound: int) -> NDArray[np.int64]:
    """Return ``size`` draws from {0, ..., bound-1}; each has probability 1/bound up to 2⁻⁵³."""
    return np.minimum((uniforms.random(size) * bound).astype(np.int64), bound - 1)
