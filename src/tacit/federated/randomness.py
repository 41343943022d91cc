"""Where local mechanisms take their randomness from.

A mechanism asks for uniform whole numbers and nothing else, so the same code runs in a simulation, on a seeded
``numpy.random.Generator`` that anyone can replay, and on a client, on the operating system's cryptographic
source that nobody can. Both give every whole number exactly the same probability: no real number is drawn,
so none has a grain that could show.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Uniforms(Protocol):
    """A source of independent uniform whole numbers; ``numpy.random.Generator`` is one."""

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent draws from {low, ..., high-1}, each equally likely."""
        ...


class SystemUniforms:
    """Whole numbers from the operating system's cryptographic generator: for values that leave a client."""

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent draws from {low, ..., high-1}, each equally likely.

        Draws words of as many bits as ``high - low`` needs and drops those that are too large.
        """
        count = high - low
        unused = np.uint64(64 - max(1, (count - 1).bit_length()))
        kept = np.empty(0, np.uint64)
        while kept.size < size:
            words = np.frombuffer(os.urandom(8 * 2 * (size - kept.size)), np.uint64) >> unused
            kept = np.concatenate([kept, words[words < np.uint64(count)]])
        return kept[:size].astype(np.int64) + low
