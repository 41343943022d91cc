"""TP-TopK: a warm-up on all coordinates finds the support for the rest (Algorithm 1 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tacit.errors import ArgumentError
from tacit.methods.two_phase import DEFAULT_WARMUP, EVEN_WARMUP, Warmup, two_phase
from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.scores import CoordinateScore
from tacit.plan.sources import Pooling, Soft, TopK, check_patterns


def tp_topk(
    schedule: Schedule,
    *,
    active_ratio: float | Literal["auto", "soft"],
    warmup: Warmup | None = None,
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

    With the active ratio "soft" no coordinate is silenced: columns are weighted by how surely the warm-up moved them
    (see :class:`tacit.plan.Soft`), and ``reset`` takes back the warm-up's movement as far as the weights say.

    "auto" and "soft" warm up for 0.3 of the steps at the noise of the rest: a run that finds no reason to differ
    from DP-SGD is DP-SGD.
    """
    itself = active_ratio in ("auto", "soft")
    warmup = warmup if warmup is not None else EVEN_WARMUP if itself else DEFAULT_WARMUP
    patterns = check_patterns(always_active)
    if active_ratio == "soft":
        for name, given in (("score", score), ("pooling", pooling), ("per_layer", per_layer)):
            if given:
                raise ArgumentError(f"{name} is for a choice of coordinates; a soft support makes none.")
        return two_phase(schedule, warmup, Soft(patterns), "movement", reset)
    score = score or ("movement" if active_ratio == "auto" else "squares")
    support = TopK(active_ratio, score, pooling, per_layer, always_active=patterns)
    return two_phase(schedule, warmup, support, score, reset)
