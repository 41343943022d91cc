"""The warm-up that TP-TopK and TP-Rand share."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.errors import ArgumentError, check_share
from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.scores import CoordinateScore
from tacit.plan.sources import All, SupportSource

Warmup = float | Sequence[float]
"""The warm-up's share of steps, and its share of epsilon unless its noise is that of the rest."""

DEFAULT_WARMUP = (0.3, 0.3)
"""(share of steps, share of epsilon): the best split in Table 4 of the paper."""

EVEN_WARMUP = 0.3
"""A share of steps with the noise of the rest: a run that then stays dense is DP-SGD, step by step."""


def two_phase(
    schedule: Schedule,
    warmup: Warmup,
    support: SupportSource,
    score: CoordinateScore | None,
    reset: bool,
) -> tuple[Draft, Draft]:
    """A warm-up on all coordinates that gathers ``score``, then training on the fixed ``support``.

    ``warmup`` is (share of steps, share of epsilon); a share of steps alone gives both phases the same noise.
    """
    shares = tuple(warmup) if isinstance(warmup, list | tuple) else (warmup,)
    if not 1 <= len(shares) <= 2:
        raise ArgumentError(
            f"warmup must be (share of steps, share of epsilon) or a share of steps, got {warmup!r}."
        )
    for name, share in zip(("steps", "epsilon"), shares, strict=False):
        if not isinstance(share, int | float):
            raise ArgumentError(f"The warm-up's share of {name} must be a number, got {share!r}.")
        check_share(f"The warm-up's share of {name}", share, one_allowed=False)
    first, second = schedule.split(shares[0])
    return (
        Draft("warm-up", first, All(), score=score, budget=shares[1] if len(shares) == 2 else 1.0),
        Draft("sparse", second, support, reset=reset),
    )
