"""DP-SGD: every coordinate, from the first step to the last (Abadi et al., 2016)."""

from __future__ import annotations

from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.sources import All


def dp_sgd(schedule: Schedule) -> tuple[Draft, ...]:
    """One phase with all coordinates."""
    return (Draft("train", schedule.steps, All()),)
