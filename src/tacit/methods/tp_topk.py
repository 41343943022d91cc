"""TP-TopK: a warm-up on all coordinates finds the support for the rest (Algorithm 1 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tacit.methods.two_phase import DEFAULT_WARMUP, two_phase
from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.scores import CoordinateScore
from tacit.plan.sources import Pooling, TopK, check_patterns


def tp_topk(
    schedule: Schedule,
    *,
    active_ratio: float | Literal["auto"],
    warmup: tuple[float, float] = DEFAULT_WARMUP,
    score: CoordinateScore | None = None,
    pooling: Pooling | None = None,
    per_layer: bool = False,
    reset: bool = False,
    always_active: Sequence[str] = (),
) -> tuple[Draft, ...]:
    """All coordinates and a score, then the top k of that score, fixed.

    The defaults are the paper's: the score is the debiased mean of squares. Where the active ratio is "auto" it is
    the movement, which ranks as the automatic choice does. ``reset`` returns silent coordinates to where they
    started, which is free post-processing.
    """
    score = score or ("movement" if active_ratio == "auto" else "squares")
    support = TopK(active_ratio, score, pooling, per_layer, always_active=check_patterns(always_active))
    return two_phase(schedule, warmup, support, score, reset)
