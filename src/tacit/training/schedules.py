"""Learning-rate schedules: pure functions of progress, so that a resumed run needs no state to continue."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int, int], float]
"""``schedule(step, steps)`` is the factor on the learning rate of step ``step`` of ``steps``, from 0."""


def constant(step: int, steps: int) -> float:
    """The same learning rate throughout."""
    return 1.0


def cosine(step: int, steps: int) -> float:
    """Half a cosine, from 1 down to 0."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def linear(step: int, steps: int) -> float:
    """A straight line, from 1 down to 0."""
    return 1 - step / steps


def warmed_up(share: float, then: Schedule) -> Schedule:
    """A straight line from 0 over the first ``share`` of the steps, then another schedule over the rest."""

    def schedule(step: int, steps: int) -> float:
        first = max(1, round(share * steps))
        return (step + 1) / first if step < first else then(step - first, max(1, steps - first))

    return schedule
