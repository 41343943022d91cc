"""RS: random supports whose active ratio cools linearly (Zhu and Blaschko, 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.sources import All, Random, check_patterns, check_ratio


def rs(schedule: Schedule, *, active_ratio: float, always_active: Sequence[str] = ()) -> tuple[Draft, ...]:
    """A fresh random support per epoch, with a ratio that falls linearly from 1 to ``active_ratio``.

    The first epoch is dense and the last has ``active_ratio``, as has the only epoch of a run of one.
    """
    check_ratio(active_ratio)
    last = len(schedule.epoch_steps) - 1
    patterns = check_patterns(always_active)
    ratios = [1 - (1 - active_ratio) * epoch / last for epoch in range(last)] + [active_ratio]
    return tuple(
        Draft(f"epoch {number}", steps, All() if ratio == 1 else Random(ratio, patterns))
        for number, (steps, ratio) in enumerate(zip(schedule.epoch_steps, ratios, strict=True), start=1)
    )
