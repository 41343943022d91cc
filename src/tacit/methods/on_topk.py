"""ON-TopK: the support follows the running score, epoch by epoch.

The paper does not say how a coordinate outside the support gets a score. Here the first epoch trains all
coordinates, so that each has been seen; afterwards a coordinate's score is the debiased mean over the steps
in which it was active, and a share ``explore`` of k is drawn at random from the coordinates that the score
left out. A coordinate that starts to matter later is therefore drawn, measured and kept; the chance of being
drawn in one epoch is explore * k / (d - (1 - explore) * k).
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule
from tacit.plan.sources import All, Pooling, TopK, check_patterns, check_ratio


def on_topk(
    schedule: Schedule,
    *,
    active_ratio: float,
    explore: float = 0.1,
    pooling: Pooling | None = None,
    per_layer: bool = False,
    always_active: Sequence[str] = (),
) -> tuple[Draft, ...]:
    """A dense first epoch, then per epoch (1 - explore) k by running score and explore * k at random."""
    check_ratio(active_ratio)
    support = TopK(active_ratio, "squares", pooling, per_layer, explore, check_patterns(always_active))
    return tuple(
        Draft(f"epoch {number}", steps, All() if number == 1 else support, score="squares")
        for number, steps in enumerate(schedule.epoch_steps, start=1)
    )
