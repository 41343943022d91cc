"""Learning-rate schedules: pure functions of progress, so that a resumed run needs no state to continue."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch.optim.lr_scheduler import LRScheduler

from tacit.errors import ArgumentError

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


def from_torch(make: Callable[[torch.optim.Optimizer], LRScheduler], rate: float = 1.0) -> Schedule:
    """A scheduler of PyTorch as a schedule, e.g. ``from_torch(lambda o: CosineAnnealingLR(o, T_max=500))``.

    ``make`` builds the scheduler for an optimizer whose learning rate is ``rate``; what it makes of that rate, divided
    by it, is the factor on the learning rates of the real optimizer. Give ``rate`` where the scheduler knows learning
    rates other than the first. It is run once, ahead, so nothing of it needs to be saved.
    """

    @cache
    def factors(steps: int) -> list[float]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
        scheduler = make(optimizer)
        if not isinstance(scheduler, LRScheduler) or isinstance(
            scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
        ):
            raise ArgumentError(
                f"A schedule must follow from the number of steps alone, which {type(scheduler).__name__} does not."
            )
        found = []
        for _ in range(steps):
            found.append(float(optimizer.param_groups[0]["lr"]) / rate)
            optimizer.step()
            scheduler.step()
        return found

    return lambda step, steps: factors(steps)[step]
