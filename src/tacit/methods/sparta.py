"""SPARTA: rows are chosen privately, then fine-tuned (Makni et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.errors import ArgumentError, check_non_negative, check_positive, check_share
from tacit.plan.phase import ClipOrder, Draft
from tacit.plan.schedule import Schedule
from tacit.plan.scores import ROW_SCORES, RowScore
from tacit.plan.sources import Named, TopRows, check_patterns


def sparta(
    schedule: Schedule,
    *,
    active_ratio: float | None = None,
    rows: int | None = None,
    score: RowScore = "absolute",
    per_layer: bool = True,
    selection_epochs: float = 1.0,
    selection_budget: float | None = None,
    head: Sequence[str] = (),
    head_epochs: float = 0.0,
    always_active: Sequence[str] = (),
    clip_order: ClipOrder = "mask-then-clip",
) -> tuple[Draft, ...]:
    """Rows scored while the weights rest, then masked DP-SGD on the best of them.

    Parameters that match ``head`` or ``always_active`` take no part in the choice and are trained in any case;
    those of ``head`` alone first for ``head_epochs``. ``active_ratio`` is the share of rows to keep, or ``rows``
    their number. All phases have the same noise; ``selection_budget`` gives the phases before fine-tuning a share
    of epsilon of their own. The page clips before it masks: ``clip_order="clip-then-mask"``.
    """
    if score not in ROW_SCORES:
        raise ArgumentError(f"score must be one of {', '.join(ROW_SCORES)}, got {score!r}.")
    check_positive("selection_epochs", selection_epochs)
    check_non_negative("head_epochs", head_epochs)
    head = check_patterns(head, "head")
    if head_epochs and not head:
        raise ArgumentError("head_epochs needs head, the patterns of the parameters to train first.")
    budget = 1.0 if selection_budget is None else check_share("selection_budget", selection_budget)
    always = tuple(dict.fromkeys((*head, *check_patterns(always_active))))
    first, second, third = schedule.cut(head_epochs, selection_epochs)
    chosen = TopRows(active_ratio, rows, score, per_layer, always)
    phases = (
        Draft("selection", second, Named(("*",), always), updates=False, score=score, budget=budget),
        Draft("fine-tuning", third, chosen, clip_order=clip_order),
    )
    return (Draft("head", first, Named(head), budget=budget), *phases) if first else phases
