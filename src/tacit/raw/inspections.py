"""When to look again at a model in training: once at the start, then at steps that nobody can foretell."""

from __future__ import annotations

import torch

from tacit.randomness import Keystream, Seeded

FIRST, GROWTH = 2, 4
"""Steps FIRST to FIRST·GROWTH hold one look, the next GROWTH times as many the next, and so on."""

APART = 32
"""A new support is looked at if the last look is this many steps ago."""


class Inspections:
    """Chooses one step of every window, each window several times as long as all before it.

    So the first updates, in which parts that started at zero wake up, are looked at soon, and a long run pays for a
    few looks only. Without a seed the choice comes from a cryptographic keystream: it is secret.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._keystream = Keystream()
        self._drawn = 0
        self._steps = self._last = 0
        self._window = FIRST
        self._next = self._choose()

    def due(self, *, changed: bool = False) -> bool:
        """Count one step: whether to look in it. ``changed``: it is the first on another support."""
        self._steps += 1
        if self._steps >= self._next:
            while self._window <= self._steps:
                self._window *= GROWTH
            self._next = self._choose()
        elif not (changed and self._steps - self._last >= APART):
            return False
        self._last = self._steps
        return True

    def generator(self) -> torch.Generator:
        """A fresh generator for what is random about one look."""
        return torch.Generator().manual_seed(int(self._uniform() * 2**53))

    def _choose(self) -> int:
        """A step of the current window."""
        return self._window + int(self._uniform() * self._window * (GROWTH - 1))

    def _uniform(self) -> float:
        self._drawn += 1
        source = self._keystream if self._seed is None else Seeded(self._seed, 2**62 + self._drawn)
        return float(source.uniform(1)[0])
