"""ON-Rand: a fresh random support in every epoch."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.sources import Random, check_patterns


def on_rand(
    schedule: Schedule, *, active_ratio: float, always_active: Sequence[str] = ()
) -> tuple[Draft, ...]:
    """One phase per epoch, each with its own random k coordinates and the same noise."""
    support = Random(active_ratio, check_patterns(always_active))
    return tuple(
        Draft(f"epoch {number}", steps, support) for number, steps in enumerate(schedule.epoch_steps, start=1)
    )
