"""The training methods by name: each says which phases a run has, before calibration.

ON-TopK: the support follows the running score, epoch by epoch.

The paper does not say how a coordinate outside the support gets a score. Here the first epoch trains all
coordinates, so that each has been seen; afterwards a coordinate's score is the debiased mean over the steps
in which it was active, and a share ``explore`` of k is drawn at random from the coordinates that the score
left out. A coordinate that starts to matter later is therefore drawn, measured and kept; the chance of being
drawn in one epoch is explore * k / (d - (1 - explore) * k).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from tacit.errors import ArgumentError, check_non_negative, check_positive, check_share
from tacit.plan.phase import ClipOrder, Draft, Schedule
from tacit.plan.sources import (
    ROW_SCORES,
    All,
    CoordinateScore,
    Named,
    Pooling,
    Random,
    RowScore,
    Soft,
    SupportSource,
    TopK,
    TopRows,
    check_patterns,
    check_ratio,
)

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


def dp_sgd(schedule: Schedule) -> tuple[Draft, ...]:
    """One phase with all coordinates."""
    return (Draft("train", schedule.steps, All()),)


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


def on_rand(
    schedule: Schedule, *, active_ratio: float, always_active: Sequence[str] = ()
) -> tuple[Draft, ...]:
    """One phase per epoch, each with its own random k coordinates and the same noise."""
    support = Random(active_ratio, check_patterns(always_active))
    return tuple(
        Draft(f"epoch {number}", steps, support) for number, steps in enumerate(schedule.epoch_steps, start=1)
    )


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


Method = Callable[..., tuple[Draft, ...]]

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "dp-sgd": dp_sgd,
        "tp-topk": tp_topk,
        "tp-rand": tp_rand,
        "on-rand": on_rand,
        "on-topk": on_topk,
        "rs": rs,
        "sparta": sparta,
        "random-rows": random_rows,
        "magnitude-rows": magnitude_rows,
        "only": only,
    }
)


def draft_phases(name: str, schedule: Schedule, options: Mapping[str, object]) -> tuple[Draft, ...]:
    """The phases of the method ``name`` before calibration.

    Unknown methods, options the method does not have and missing ones are refused: nothing is swallowed.
    """
    if name not in METHODS:
        close = difflib.get_close_matches(str(name).lower().replace("_", "-"), METHODS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ArgumentError(f"Unknown method {name!r}: choose one of {', '.join(METHODS)}{hint}")
    method = METHODS[name]
    parameters = {
        key: value for key, value in inspect.signature(method).parameters.items() if key != "schedule"
    }
    for option in options:
        if option not in parameters:
            known = f"it takes {', '.join(parameters)}" if parameters else "it takes no options"
            raise ArgumentError(f"{name} has no option {option!r}; {known}.")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ArgumentError(f"{name} needs {option}.")
    return method(schedule, **options)
