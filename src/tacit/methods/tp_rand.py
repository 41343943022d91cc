"""TP-Rand: the warm-up of TP-TopK, then a random support of the same size; its control."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.methods.two_phase import DEFAULT_WARMUP, Warmup, two_phase
from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.sources import Random, check_patterns


def tp_rand(
    schedule: Schedule,
    *,
    active_ratio: float,
    warmup: Warmup = DEFAULT_WARMUP,
    reset: bool = False,
    always_active: Sequence[str] = (),
) -> tuple[Draft, ...]:
    """All coordinates, then random k coordinates, fixed."""
    return two_phase(schedule, warmup, Random(active_ratio, check_patterns(always_active)), None, reset)
