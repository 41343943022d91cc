"""Supports that no private value has chosen: named parameters, random rows, rows by their public weights."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.sources import Named, TopRows, check_patterns


def only(schedule: Schedule, *, active: Sequence[str]) -> tuple[Draft, ...]:
    """One phase with the parameters that match a pattern: the head for linear probing, biases for BitFiT."""
    return (Draft("train", schedule.steps, Named(check_patterns(active, "active"))),)


def random_rows(
    schedule: Schedule,
    *,
    active_ratio: float | None = None,
    rows: int | None = None,
    per_layer: bool = True,
    always_active: Sequence[str] = (),
) -> tuple[Draft, ...]:
    """One phase with rows drawn at random: the control for SPARTA."""
    support = TopRows(active_ratio, rows, "random", per_layer, check_patterns(always_active))
    return (Draft("train", schedule.steps, support),)


def magnitude_rows(
    schedule: Schedule,
    *,
    active_ratio: float | None = None,
    rows: int | None = None,
    per_layer: bool = True,
    always_active: Sequence[str] = (),
) -> tuple[Draft, ...]:
    """One phase with the rows whose public weights are largest in sum of absolute values."""
    support = TopRows(active_ratio, rows, "weights", per_layer, check_patterns(always_active))
    return (Draft("train", schedule.steps, support),)
