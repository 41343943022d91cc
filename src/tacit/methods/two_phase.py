"""The warm-up that TP-TopK and TP-Rand share."""

from __future__ import annotations

from tacit.errors import ArgumentError, check_share
from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.scores import CoordinateScore
from tacit.plan.sources import All, SupportSource

DEFAULT_WARMUP = (0.3, 0.3)
"""(share of steps, share of epsilon): the best split in Table 4 of the paper."""


def two_phase(
    schedule: Schedule,
    warmup: tuple[float, float],
    support: SupportSource,
    score: CoordinateScore | None,
    reset: bool,
) -> tuple[Draft, Draft]:
    """A warm-up on all coordinates that gathers ``score``, then training on the fixed ``support``."""
    try:
        share_of_steps, share_of_epsilon = warmup
    except (TypeError, ValueError):
        raise ArgumentError(f"warmup must be (share of steps, share of epsilon), got {warmup!r}.") from None
    for name, share in (("steps", share_of_steps), ("epsilon", share_of_epsilon)):
        if not isinstance(share, int | float):
            raise ArgumentError(f"The warm-up's share of {name} must be a number, got {share!r}.")
        check_share(f"The warm-up's share of {name}", share, one_allowed=False)
    first, second = schedule.split(share_of_steps)
    return (
        Draft("warm-up", first, All(), score=score, budget=share_of_epsilon),
        Draft("sparse", second, support, reset=reset),
    )
