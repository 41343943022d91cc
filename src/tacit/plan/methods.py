"""The training methods: each says which phases a run has, before calibration.

A method is a frozen dataclass whose fields are its options. To add one, write a class and name it in ``METHODS``;
the command line, configuration files and the reference pick up the method and its options from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

from tacit.errors import (
    ArgumentError,
    check_count,
    check_non_negative,
    check_positive,
    check_share,
    did_you_mean,
)
from tacit.option_fields import option
from tacit.plan.phase import ClipOrder, Draft, Schedule
from tacit.plan.sources import (
    GRADIENT_ROW_SCORES,
    AdaptiveRows,
    All,
    Chosen,
    CoordinateScore,
    GradientRowScore,
    Named,
    Own,
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

Warmup = float | tuple[float, ...]
"""The warm-up's share of steps, and its share of epsilon unless it has the noise of the main phase."""

DEFAULT_WARMUP = (0.3, 0.3)
"""(share of steps, share of epsilon): the best split in Table 4 of the paper."""

DEFAULT_VOTES = 4
"""Rows of each layer, or modules, that an example votes for."""

EVEN_WARMUP = 0.3
"""A share of steps with the noise of the main phase: a run that then stays dense is DP-SGD, step by step."""


class Method:
    """Base of all methods. A subclass is a frozen dataclass with a ``name`` and the phases it plans."""

    name: ClassVar[str]

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """The phases of a run over ``schedule``, before calibration."""
        raise NotImplementedError

    def _set(self, **values: object) -> None:
        """Store checked values in the frozen fields."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _active_ratio() -> Any:
    return option("Share of coordinates to keep active.")


def _row_ratio() -> Any:
    return option("Share of the rows to train.", None)


def _rows() -> Any:
    return option("Number of rows to train in each layer, instead of a share.", None)


def _always_active() -> Any:
    return option(
        "Pattern of parameter names that belong to every support, such as '*.bias'.", (), shown="none"
    )


def _warmup(default: Warmup | None) -> Any:
    return option(
        "Warm-up as STEPS[,EPSILON] fractions, e.g. 0.3,0.3. With one number, the warm-up uses the main phase's noise.",
        default,
        shown="0.3,0.3; 0.3 with an active ratio of auto or soft",
    )


def _reset(default: bool | None = False) -> Any:
    return option(
        "After the warm-up, return inactive coordinates to their initial value.",
        default,
        flag="--reset/--keep",
        shown="keep; reset with an active ratio of auto or soft",
    )


def _pooling() -> Any:
    return option("Average scores over each row or column of a weight before ranking.", None)


def _per_layer(default: bool) -> Any:
    return option(
        "Choose the top share within each parameter instead of over the whole model.",
        default,
        flag="--per-layer/--whole-model",
    )


def _choose() -> Any:
    return option(
        "Whether rows are chosen, or whole modules (which layers get a low-rank correction).", "rows"
    )


def _shares(warmup: object) -> tuple[float, ...]:
    """A checked warm-up: (share of steps, share of epsilon), or the share of steps alone."""
    shares = tuple(warmup) if isinstance(warmup, list | tuple) else (warmup,)
    if not 1 <= len(shares) <= 2:
        raise ArgumentError(
            f"warmup must be (share of steps, share of epsilon) or a share of steps, got {warmup!r}."
        )
    for name, share in zip(("steps", "epsilon"), shares, strict=False):
        if not isinstance(share, int | float):
            raise ArgumentError(f"The warm-up's share of {name} must be a number, got {share!r}.")
        check_share(f"The warm-up's share of {name}", share, one_allowed=False)
    return shares


def _two_phases(
    schedule: Schedule,
    warmup: Warmup,
    support: SupportSource,
    score: CoordinateScore | None,
    reset: bool,
) -> tuple[Draft, Draft]:
    """A warm-up on all coordinates that gathers ``score``, then training on the fixed ``support``."""
    shares = _shares(warmup)
    first, second = schedule.split(shares[0])
    return (
        Draft("warm-up", first, All(), score=score, budget=shares[1] if len(shares) == 2 else 1.0),
        Draft("sparse", second, support, reset=reset),
    )


@dataclass(frozen=True, kw_only=True)
class DPSGD(Method):
    """DP-SGD: one phase that trains all coordinates."""

    name: ClassVar[str] = "dp-sgd"

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """One dense phase."""
        return (Draft("train", schedule.steps, All()),)


CENTRE = "centre.*"
"""The parameters of a model's centre."""


@dataclass(frozen=True, kw_only=True)
class Centred(Method):
    """DP-SGD after a phase that learns the centre of the inputs, for models that have one (``centred-linear``).

    The first phase trains the centre alone, with ``centre_budget`` of epsilon; the second trains everything else. A
    middle of many vectors is known well at a small part of epsilon.
    """

    name: ClassVar[str] = "centred"

    centre_epochs: float = option("Epochs that learn the centre of the inputs.", 1.0)
    centre_budget: float = option("Share of ε that the centre may spend.", 0.1)

    def __post_init__(self) -> None:
        check_positive("centre_epochs", self.centre_epochs)
        check_share("centre_budget", self.centre_budget, one_allowed=False)

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """The centre, then all other parameters."""
        first, second = schedule.cut(self.centre_epochs)
        return (
            Draft("centre", first, Named((CENTRE,)), budget=self.centre_budget),
            Draft("train", second, Named(("*",), (CENTRE,))),
        )


@dataclass(frozen=True, kw_only=True)
class TPTopK(Method):
    """TP-TopK: a warm-up on all coordinates that scores them, then training on the top k by score, fixed.

    The defaults are the paper's: the score is the debiased mean of squares. Where the active ratio is "auto" it is
    the movement, which ranks as the automatic choice does. ``reset`` returns inactive coordinates to where they
    started, which is free post-processing; it is the default of "auto" and "soft".

    With "auto" the coordinates that stand out from the noise are chosen, if the signal that the others may hold
    together is shown to be worth less than their noise; otherwise all stay active. "soft" keeps all active and weights
    columns by how surely the warm-up moved them (see :class:`tacit.plan.Soft`); ``reset`` then makes the warm-up's
    movement as large as the weights say.

    "auto" and "soft" warm up for 0.3 of the steps with the noise of the main phase: a run that finds no reason to
    differ from DP-SGD is DP-SGD.
    """

    name: ClassVar[str] = "tp-topk"

    active_ratio: float | Literal["auto", "soft"] = option(
        "Share of coordinates to keep active, auto (chosen from the warm-up), or soft (columns weighted)."
    )
    warmup: Warmup | None = _warmup(None)
    score: CoordinateScore | None = option(
        "What ranks coordinates.", None, shown="squares; movement with an active ratio of auto"
    )
    pooling: Pooling | None = _pooling()
    per_layer: bool = _per_layer(False)
    reset: bool | None = _reset(None)
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        self._set(always_active=check_patterns(self.always_active))
        if self.warmup is not None:
            _shares(self.warmup)
        self._support()

    def _support(self) -> tuple[SupportSource, CoordinateScore]:
        patterns = tuple(self.always_active)
        if self.active_ratio == "soft":
            for name in ("score", "pooling", "per_layer"):
                if getattr(self, name):
                    raise ArgumentError(f"{name} is for a choice of coordinates; a soft support makes none.")
            return Soft(patterns), "movement"
        score = self.score or ("movement" if self.active_ratio == "auto" else "squares")
        return TopK(self.active_ratio, score, self.pooling, self.per_layer, always_active=patterns), score

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """The dense warm-up and the phase on the chosen support."""
        support, score = self._support()
        even = self.active_ratio in ("auto", "soft")
        warmup = self.warmup if self.warmup is not None else EVEN_WARMUP if even else DEFAULT_WARMUP
        reset = self.reset if self.reset is not None else even
        return _two_phases(schedule, warmup, support, score, reset)


@dataclass(frozen=True, kw_only=True)
class TPRand(Method):
    """TP-Rand: a warm-up on all coordinates, then training on k random coordinates, fixed."""

    name: ClassVar[str] = "tp-rand"

    active_ratio: float = _active_ratio()
    warmup: Warmup = _warmup(DEFAULT_WARMUP)
    reset: bool = _reset()
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        self._set(
            always_active=check_patterns(self.always_active), active_ratio=check_ratio(self.active_ratio)
        )
        _shares(self.warmup)

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """The dense warm-up and the phase on random coordinates."""
        support = Random(self.active_ratio, tuple(self.always_active))
        return _two_phases(schedule, self.warmup, support, None, self.reset)


@dataclass(frozen=True, kw_only=True)
class OnRand(Method):
    """ON-Rand: one phase per epoch, each with its own k random coordinates and the same noise."""

    name: ClassVar[str] = "on-rand"

    active_ratio: float = _active_ratio()
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        self._set(
            always_active=check_patterns(self.always_active), active_ratio=check_ratio(self.active_ratio)
        )

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """A phase per epoch, each with a fresh random support."""
        support = Random(self.active_ratio, tuple(self.always_active))
        return tuple(
            Draft(f"epoch {number}", steps, support)
            for number, steps in enumerate(schedule.epoch_steps, start=1)
        )


@dataclass(frozen=True, kw_only=True)
class OnTopK(Method):
    """ON-TopK: the support follows the running score, epoch by epoch.

    The paper does not say how a coordinate outside the support gets a score. Here the first epoch trains all
    coordinates, so that each has been seen; afterwards a coordinate's score is the debiased mean over the steps
    in which it was active, and a share ``explore`` of k is drawn at random from the coordinates that the score
    left out. A coordinate that starts to matter later is therefore drawn, measured and kept; the chance of being
    drawn in one epoch is explore * k / (d - (1 - explore) * k).
    """

    name: ClassVar[str] = "on-topk"

    active_ratio: float = _active_ratio()
    explore: float = option("Share of the support drawn at random each epoch, in [0, 1).", 0.1)
    pooling: Pooling | None = _pooling()
    per_layer: bool = _per_layer(False)
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        self._set(
            always_active=check_patterns(self.always_active), active_ratio=check_ratio(self.active_ratio)
        )
        self._support()

    def _support(self) -> TopK:
        return TopK(
            self.active_ratio,
            "squares",
            self.pooling,
            self.per_layer,
            self.explore,
            tuple(self.always_active),
        )

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """A dense first epoch, then per epoch (1 - explore) k by running score and explore * k at random."""
        support = self._support()
        return tuple(
            Draft(f"epoch {number}", steps, All() if number == 1 else support, score="squares")
            for number, steps in enumerate(schedule.epoch_steps, start=1)
        )


@dataclass(frozen=True, kw_only=True)
class RS(Method):
    """RS: a fresh random support per epoch, with a ratio that falls linearly from 1 to ``active_ratio``.

    The first epoch is dense and the last has ``active_ratio``, as has the only epoch of a run of one.
    """

    name: ClassVar[str] = "rs"

    active_ratio: float = _active_ratio()
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        self._set(
            always_active=check_patterns(self.always_active), active_ratio=check_ratio(self.active_ratio)
        )

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """A phase per epoch, from dense to sparse."""
        last = len(schedule.epoch_steps) - 1
        ratios = [1 - (1 - self.active_ratio) * epoch / last for epoch in range(last)] + [self.active_ratio]
        return tuple(
            Draft(f"epoch {number}", steps, All() if ratio == 1 else Random(ratio, tuple(self.always_active)))
            for number, (steps, ratio) in enumerate(zip(schedule.epoch_steps, ratios, strict=True), start=1)
        )


@dataclass(frozen=True, kw_only=True)
class Sparta(Method):
    """SPARTA: rows are scored while the weights rest, then masked DP-SGD trains the best of them.

    Parameters that match ``head`` or ``always_active`` take no part in the choice and are trained in any case;
    those of ``head`` alone first for ``head_epochs``. ``active_ratio`` is the share of rows to keep, or ``rows``
    their number. All phases have the same noise; ``selection_budget`` gives the phases before fine-tuning their own
    share of epsilon. The paper clips before it masks: ``clip_order="clip-then-mask"``. With the score "votes" (DP-SAPF)
    every example votes for the ``votes`` rows of each layer in which its gradient is largest, and no clip norm matters.
    ``choose="modules"`` takes whole modules, by votes for them or by the sum of the scores of their rows.
    """

    name: ClassVar[str] = "sparta"

    active_ratio: float | None = _row_ratio()
    rows: int | None = _rows()
    score: GradientRowScore = option("What ranks rows.", "absolute")
    votes: int | None = option(
        "With the score votes: how many rows of each layer, or modules, an example votes for.",
        None,
        shown=str(DEFAULT_VOTES),
    )
    choose: Chosen = _choose()
    per_layer: bool = _per_layer(True)
    selection_epochs: float = option("Epochs that score rows.", 1.0)
    selection_budget: float | None = option(
        "Share of ε that may be spent before fine-tuning starts.", None, shown="the same noise throughout"
    )
    head: Sequence[str] = option(
        "Pattern of parameter names of the head, which is always trained.", (), shown="none"
    )
    head_epochs: float = option("Epochs that train the head alone first.", 0.0)
    always_active: Sequence[str] = _always_active()
    clip_order: ClipOrder = option(
        "Whether gradients are clipped on the chosen rows, or on all coordinates first.", "mask-then-clip"
    )

    def __post_init__(self) -> None:
        if self.score not in GRADIENT_ROW_SCORES:
            raise ArgumentError(f"score must be one of {', '.join(GRADIENT_ROW_SCORES)}, got {self.score!r}.")
        if self.votes is not None and self.score != "votes":
            raise ArgumentError('votes are for the score votes; leave them out, or say score="votes".')
        if self.votes is not None:
            check_count("votes", self.votes)
        check_positive("selection_epochs", self.selection_epochs)
        check_non_negative("head_epochs", self.head_epochs)
        self._set(head=check_patterns(self.head, "head"))
        if self.head_epochs and not self.head:
            raise ArgumentError("head_epochs needs head, the patterns of the parameters to train first.")
        if self.selection_budget is not None:
            check_share("selection_budget", self.selection_budget)
        self._set(always_active=check_patterns(self.always_active))
        if self.clip_order not in get_args(ClipOrder):
            raise ArgumentError(
                f"clip_order must be {' or '.join(get_args(ClipOrder))}, got {self.clip_order!r}."
            )
        self._support()

    def _support(self) -> TopRows:
        always = tuple(dict.fromkeys((*self.head, *self.always_active)))
        return TopRows(self.active_ratio, self.rows, self._ranking, self.per_layer, always, self.choose)

    @property
    def _ranking(self) -> RowScore:
        return "module-votes" if self.score == "votes" and self.choose == "modules" else self.score

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """The head alone if asked for, then the selection without updates, then fine-tuning."""
        chosen = self._support()
        budget = 1.0 if self.selection_budget is None else self.selection_budget
        first, second, third = schedule.cut(self.head_epochs, self.selection_epochs)
        scored = Named(("*",), chosen.always_active)
        votes = (self.votes or DEFAULT_VOTES) if self.score == "votes" else None
        phases = (
            Draft(
                "selection", second, scored, updates=False, score=self._ranking, budget=budget, votes=votes
            ),
            Draft("fine-tuning", third, chosen, clip_order=self.clip_order),
        )
        return (Draft("head", first, Named(tuple(self.head)), budget=budget), *phases) if first else phases


@dataclass(frozen=True, kw_only=True)
class CountedRows(Method):
    """Embedding rows by private frequency: noisy counts say which rows are used most, and only those are trained.

    In the first phase every example votes for the rows of the embedding tables that it looks up, all its votes
    together clipped to L2 norm C; the weights rest. Then DP-SGD trains the ``active_ratio`` (or ``rows``) with the
    highest noisy counts in each table, and all other parameters. All phases have the same noise;
    ``selection_budget`` gives the counts their own share of epsilon.
    """

    name: ClassVar[str] = "counted-rows"

    active_ratio: float | None = _row_ratio()
    rows: int | None = _rows()
    selection_epochs: float = option("Epochs that score rows.", 1.0)
    selection_budget: float | None = option(
        "Share of ε that may be spent before fine-tuning starts.", None, shown="the same noise throughout"
    )
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        check_positive("selection_epochs", self.selection_epochs)
        if self.selection_budget is not None:
            check_share("selection_budget", self.selection_budget)
        self._set(always_active=check_patterns(self.always_active))
        self._support()

    def _support(self) -> TopRows:
        return TopRows(self.active_ratio, self.rows, "counts", True, tuple(self.always_active))

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """Counts without updates, then training of the rows that they choose."""
        first, second = schedule.cut(self.selection_epochs)
        budget = 1.0 if self.selection_budget is None else self.selection_budget
        return (
            Draft("counts", first, All(), updates=False, score="counts", budget=budget),
            Draft("train", second, self._support()),
        )


@dataclass(frozen=True, kw_only=True)
class AdaFEST(Method):
    """DP-AdaFEST: every step chooses the embedding rows that its noisy counts show to be used, and trains those.

    A step costs what its batch touches, and rows that it does not choose get neither a gradient nor noise. Counts and
    gradients divide the noise, so gradients have more of it than under DP-SGD: √2 times as much for a share of a half.
    """

    name: ClassVar[str] = "adafest"

    threshold: float = option(
        "What a row's noisy count must reach, in standard deviations of its noise.",
        2.0,
        shown="2; by a rule for texts",
    )
    selection_share: float = option(
        "How noise is divided between choosing rows and gradients; larger gives gradients less.", 0.5
    )

    def __post_init__(self) -> None:
        AdaptiveRows(self.threshold, self.selection_share)

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """One phase, whose steps choose their rows."""
        return (Draft("train", schedule.steps, AdaptiveRows(self.threshold, self.selection_share)),)


@dataclass(frozen=True, kw_only=True)
class RandomRows(Method):
    """One phase with rows drawn at random: the control for SPARTA."""

    name: ClassVar[str] = "random-rows"
    ranking: ClassVar[Literal["random", "weights"]] = "random"

    active_ratio: float | None = _row_ratio()
    rows: int | None = _rows()
    choose: Chosen = _choose()
    per_layer: bool = _per_layer(True)
    always_active: Sequence[str] = _always_active()

    def __post_init__(self) -> None:
        self._set(always_active=check_patterns(self.always_active))
        self._support()

    def _support(self) -> TopRows:
        always = tuple(self.always_active)
        return TopRows(self.active_ratio, self.rows, self.ranking, self.per_layer, always, self.choose)

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """One phase on the chosen rows."""
        return (Draft("train", schedule.steps, self._support()),)


@dataclass(frozen=True, kw_only=True)
class MagnitudeRows(RandomRows):
    """One phase with the rows whose public weights are largest in sum of absolute values."""

    name: ClassVar[str] = "magnitude-rows"
    ranking: ClassVar[Literal["random", "weights"]] = "weights"


@dataclass(frozen=True, kw_only=True)
class Only(Method):
    """One phase with the parameters that match a pattern: the head for linear probing, biases for BitFiT."""

    name: ClassVar[str] = "only"

    active: Sequence[str] = option("Pattern of parameter names to train, such as 'head.*'.")

    def __post_init__(self) -> None:
        self._set(active=Named(check_patterns(self.active, "active")).active)

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """One phase on the named parameters."""
        return (Draft("train", schedule.steps, Named(tuple(self.active))),)


@dataclass(frozen=True, kw_only=True)
class OwnLoop(Method):
    """A custom training loop (``PrivateLoop``): the steps of DP-SGD, on coordinates that the loop chooses."""

    name: ClassVar[str] = "own-loop"

    def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
        """One phase, whatever the loop does in it."""
        return (Draft("train", schedule.steps, Own()),)


METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            DPSGD,
            Centred,
            TPTopK,
            TPRand,
            OnRand,
            OnTopK,
            RS,
            Sparta,
            CountedRows,
            AdaFEST,
            RandomRows,
            MagnitudeRows,
            Only,
        )
    }
)
"""Every method that needs nothing but a plan, by name."""


def _names(method: type[Method]) -> set[str]:
    return {field.name for field in fields(method)}  # type: ignore[arg-type]


_OPACUS = {"max_grad_norm": "clip_norm", "target_epsilon": "epsilon", "target_delta": "delta"}


def method_of(name: str, options: Mapping[str, object]) -> Method:
    """The method ``name`` with ``options``.

    Unknown methods, options the method does not have and missing ones are refused: nothing is swallowed.
    """
    if name not in METHODS:
        hint = did_you_mean(str(name).lower().replace("_", "-"), METHODS, cutoff=0.5)
        raise ArgumentError(f"Unknown method {name!r}: choose one of {', '.join(METHODS)}{hint}")
    method = METHODS[name]
    known = {field.name: field for field in fields(method)}  # type: ignore[arg-type]
    for given in options:
        if given not in known:
            taken = f"it takes {', '.join(known)}" if known else "it takes no options"
            if given in _OPACUS:
                taken = f"what Opacus calls so is {_OPACUS[given]} of make_plan"
            others = [other for other in METHODS if given in _names(METHODS[other])]
            elsewhere = f" (an option of {', '.join(others)})" if others else ""
            raise ArgumentError(f"{name} has no option {given!r}{elsewhere}; {taken}.")
    for needed, field in known.items():
        if field.default is MISSING and needed not in options:
            raise ArgumentError(f"{name} needs {needed}.")
    return method(**options)
