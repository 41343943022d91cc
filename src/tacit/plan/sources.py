"""Where a phase's support comes from, and the scores that rank coordinates and rows.

The scores that choose a support, and what a phase must release for each.

A score of coordinates ranks single coordinates, a score of rows ranks rows (entries of dimension 0) of weights:

``squares``    debiased mean of squared released gradients (TP-TopK)
``movement``   |theta1 - theta0|: how far the released steps have carried a coordinate
``absolute``   row totals of the released sum of |clip(g)| (SPARTA)
``magnitude``  row totals of |released sum of clip(g)| (the public implementation of SPARTA)
``saliency``   row totals of |theta| times the released sum of |clip(g)|
``row-norms``  the released sum of the L2 norms of the rows of clip(g)
``votes``      the released number of examples that have a row among the few of their largest gradients (DP-SAPF)
``module-votes``  the released number of examples that have a whole module among the few of their largest gradients
``counts``     the released number of examples that look a row of an embedding table up, each example clipped

Where the support of a phase comes from: small frozen descriptions, public and comparable.

A description says how the support is chosen, never which coordinates it holds. Every kind takes
``always_active``: patterns (``fnmatch``) of parameter names whose coordinates belong to every support and
do not count towards the active ratio.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

from tacit.errors import ArgumentError, FileError, check_count, check_positive, check_share

CoordinateScore = Literal["squares", "movement"]
GradientRowScore = Literal["absolute", "magnitude", "saliency", "row-norms", "votes"]
RowScore = GradientRowScore | Literal["counts", "module-votes"]
Score = CoordinateScore | RowScore

COORDINATE_SCORES: tuple[CoordinateScore, ...] = ("squares", "movement")
GRADIENT_ROW_SCORES: tuple[GradientRowScore, ...] = (
    "absolute",
    "magnitude",
    "saliency",
    "row-norms",
    "votes",
)
ROW_SCORES: tuple[RowScore, ...] = (*GRADIENT_ROW_SCORES, "counts", "module-votes")
VOTING: tuple[RowScore, ...] = ("votes", "module-votes")
SCORES: tuple[Score, ...] = (*COORDINATE_SCORES, *ROW_SCORES)

Statistic = Literal["gradient", "absolute", "row-norms", "row-counts", "row-votes", "module-votes"]
"""What a release sums over examples: clip(g), |clip(g)|, the L2 norm of every row of clip(g), clip(u), where u is 1
for the rows of embedding tables that the example looks up and 0 for the others, or votes: of every parameter the m rows
with the largest gradients of the example get the same number, C/√n with n votes in all, and the others 0. Votes for
modules are C/√m each for the m modules with the largest gradients, in the first row of the module's first parameter.

Each is a vector of L2 norm at most C, so all of them have the sensitivity C.
"""


def statistic_of(score: Score | None) -> Statistic:
    """What a phase that gathers ``score`` releases."""
    if score in ("absolute", "saliency"):
        return "absolute"
    if score == "counts":
        return "row-counts"
    if score == "votes":
        return "row-votes"
    if score == "module-votes":
        return "module-votes"
    return "row-norms" if score == "row-norms" else "gradient"


Pooling = Literal["row", "column"]
Chosen = Literal["rows", "modules"]
RowRanking = RowScore | Literal["weights", "random"]

ROW_RANKINGS: tuple[RowRanking, ...] = (*ROW_SCORES, "weights", "random")
POOLINGS: tuple[Pooling, ...] = ("row", "column")


def active_count(ratio: float, coordinates: int) -> int:
    """k = floor(ratio * d), as in Algorithm 1, and at least one coordinate.

    The tiny addition undoes binary rounding, so that 0.29 of 100 coordinates is 29.
    """
    return max(1, math.floor(check_ratio(ratio) * coordinates + 1e-9))


def check_ratio(ratio: object) -> float:
    """Return ``ratio`` if it is a number in (0, 1]."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float):
        raise ArgumentError(f"active_ratio must be a number in (0, 1], got {ratio!r}.")
    return float(check_share("active_ratio", ratio))


def check_patterns(patterns: object, name: str = "always_active") -> tuple[str, ...]:
    """Return ``patterns`` as a tuple if it is a list of parameter-name patterns, not a single text."""
    if not isinstance(patterns, tuple | list) or not all(isinstance(item, str) and item for item in patterns):
        raise ArgumentError(
            f"{name} must be a list of parameter-name patterns such as '*.bias', got {patterns!r}."
        )
    return tuple(patterns)


SCORE_WORDS: Mapping[str, str] = {
    "squares": "mean squared gradient so far",
    "movement": "how far the warm-up moved each coordinate",
    "absolute": "summed absolute gradients",
    "magnitude": "the absolute value of the summed gradients",
    "saliency": "weights times summed absolute gradients",
    "row-norms": "the norms of the gradients' rows",
    "votes": "noisy votes of the examples for the rows of their largest gradients",
    "module-votes": "noisy votes of the examples for the modules of their largest gradients",
    "counts": "noisy counts of the examples that use each row",
    "weights": "the magnitude of the public weights",
}
"""What a score ranks by, in words."""


class Source:
    """What the rest of Tacit asks of every kind of source; the defaults are those of a choice made by the plan alone.

    ``str`` is the short form that certificates of versions 1 and 2 carry; ``words`` says the same in plain English.
    """

    kind: ClassVar[str]

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        raise NotImplementedError

    @property
    def dense(self) -> bool:
        """Whether every trainable coordinate is active."""
        return False

    @property
    def share(self) -> float | None:
        """The share of coordinates that is active; ``None`` where it depends on the model or is chosen in the run."""
        return None

    @property
    def chosen_in_run(self) -> bool:
        """Whether the number of active coordinates is chosen during the run, from released gradients."""
        return False

    @property
    def needs_folds(self) -> bool:
        """Whether the choice needs the scored steps before it in parts, to estimate how much is signal."""
        return False

    @property
    def scored_steps(self) -> int:
        """The least number of scored steps before it that the choice needs."""
        return 0

    @property
    def needs_origin(self) -> bool:
        """Whether the choice needs the parameters that training started from."""
        return False

    @property
    def ranks_public_weights(self) -> bool:
        """Whether the choice ranks the weights as they are, which is public until the first update."""
        return False

    @property
    def follows_releases(self) -> bool:
        """Whether the choice may depend on what was released before; so it does unless it is known not to."""
        return True

    @property
    def candidates(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Patterns of the parameters that the source takes or chooses among, and of those that it leaves out."""
        return ("*",), self.always

    @property
    def always(self) -> tuple[str, ...]:
        """Patterns of the parameters that are active in any case."""
        return ()

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same choice in a model of one layer with so many rows, where no pattern of names has a meaning."""
        raise NotImplementedError


class _Choosing(Source):
    """A source that chooses among parameters and leaves those of ``always_active`` out of the choice."""

    always_active: tuple[str, ...]

    @property
    def always(self) -> tuple[str, ...]:
        """Patterns of the parameters that are active in any case."""
        return self.always_active

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same choice, without patterns of names."""
        found: Any = dataclasses.replace(self, always_active=())  # type: ignore[type-var]
        return cast(SupportSource, found)


@dataclass(frozen=True)
class All(Source):
    """Every trainable coordinate."""

    kind: ClassVar[str] = "all"

    def __str__(self) -> str:
        return "all"

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        return "all coordinates"

    @property
    def dense(self) -> bool:
        """Always."""
        return True

    @property
    def follows_releases(self) -> bool:
        """Never."""
        return False

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same."""
        return self


@dataclass(frozen=True)
class Random(_Choosing):
    """A uniformly random set of k = floor(ratio * d) coordinates, drawn afresh when the phase starts."""

    kind: ClassVar[str] = "random"
    ratio: float
    always_active: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", check_ratio(self.ratio))
        object.__setattr__(self, "always_active", check_patterns(self.always_active))

    def __str__(self) -> str:
        return f"random {self.ratio:g}" + _suffix(self.always_active)

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        return f"{_percent(self.ratio)} of the coordinates at random" + _always_words(self.always_active)

    @property
    def share(self) -> float | None:
        """The ratio."""
        return self.ratio

    @property
    def follows_releases(self) -> bool:
        """Never: it is drawn from a public seed."""
        return False


@dataclass(frozen=True)
class TopK(_Choosing):
    """The k = floor(ratio * d) coordinates with the largest score over released gradients.

    ``ratio="auto"`` chooses k from the released warm-up gradients and leaves embeddings whole. ``score`` is the
    debiased mean of squares (``squares``) or the distance moved |theta1 - theta0| (``movement``). ``pooling``
    averages the score over rows or columns of each weight before ranking. ``per_layer`` takes the top share
    within each parameter. ``explore`` is the share of k drawn at random from the coordinates outside the top (1
    - explore) k.
    """

    kind: ClassVar[str] = "top-k"
    ratio: float | Literal["auto"]
    score: CoordinateScore = "squares"
    pooling: Pooling | None = None
    per_layer: bool = False
    explore: float = 0.0
    always_active: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.ratio, str):
            if self.ratio != "auto":
                raise ArgumentError(f"active_ratio must lie in (0, 1] or be 'auto', got {self.ratio!r}.")
        else:
            object.__setattr__(self, "ratio", check_ratio(self.ratio))
        if self.score not in COORDINATE_SCORES:
            raise ArgumentError(f"score must be one of {', '.join(COORDINATE_SCORES)}, got {self.score!r}.")
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise ArgumentError(
                f"pooling must be one of {', '.join(POOLINGS)} or None, got {self.pooling!r}."
            )
        if not isinstance(self.per_layer, bool):
            raise ArgumentError(f"per_layer must be True or False, got {self.per_layer!r}.")
        if isinstance(self.explore, bool) or not 0 <= self.explore < 1:
            raise ArgumentError(f"explore must lie in [0, 1), got {self.explore!r}.")
        object.__setattr__(self, "explore", float(self.explore))
        object.__setattr__(self, "always_active", check_patterns(self.always_active))

    def __str__(self) -> str:
        ratio = self.ratio if isinstance(self.ratio, str) else f"{self.ratio:g}"
        parts = [f"top {ratio} by {self.score}"]
        parts += [f"pooled by {self.pooling}"] if self.pooling else []
        parts += ["per layer"] if self.per_layer else []
        parts += [f"explore {self.explore:g}"] if self.explore else []
        return ", ".join(parts) + _suffix(self.always_active)

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        by = SCORE_WORDS[self.score]
        share = self.share
        text = f"chosen automatically by {by}" if share is None else f"the top {_percent(share)} by {by}"
        text += f", averaged by {self.pooling}" if self.pooling else ""
        text += ", in each parameter" if self.per_layer else ""
        text += f", {_percent(self.explore)} of them at random" if self.explore else ""
        return text + _always_words(self.always_active)

    @property
    def share(self) -> float | None:
        """The ratio, unless it is chosen automatically."""
        return None if isinstance(self.ratio, str) else self.ratio

    @property
    def chosen_in_run(self) -> bool:
        """If the ratio is "auto"."""
        return self.ratio == "auto"

    @property
    def needs_folds(self) -> bool:
        """If the ratio is "auto"."""
        return self.chosen_in_run

    @property
    def scored_steps(self) -> int:
        """Two where the ratio is "auto": one to rank by, one to judge."""
        return 2 if self.chosen_in_run else 0

    @property
    def needs_origin(self) -> bool:
        """If the score is the movement."""
        return self.score == "movement"


@dataclass(frozen=True)
class Soft(_Choosing):
    """The columns of each weight by how surely released gradients moved them: weighted, or as they are.

    All columns stay active, and a positive weight multiplies what was released before it moves the parameter. Relative
    to the largest, no weight is smaller than what the columns that do not stand out may deserve together; their mean
    square is 1 at most, so that training has no more noise than without them. Embeddings and vectors stay as they are.
    """

    kind: ClassVar[str] = "soft"
    always_active: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "always_active", check_patterns(self.always_active))

    def __str__(self) -> str:
        return "all, weighted by column" + _suffix(self.always_active)

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        text = "all coordinates, each column weighted by how surely the warm-up moved it"
        return text + _always_words(self.always_active)

    @property
    def dense(self) -> bool:
        """Always: no weight is zero."""
        return True

    @property
    def needs_folds(self) -> bool:
        """Always."""
        return True

    @property
    def scored_steps(self) -> int:
        """One, to weight by."""
        return 1


@dataclass(frozen=True)
class Named(Source):
    """All coordinates of the parameters whose name matches a pattern in ``active`` and none in ``silent``."""

    kind: ClassVar[str] = "named"
    active: tuple[str, ...]
    silent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "active", check_patterns(self.active, "active"))
        object.__setattr__(self, "silent", check_patterns(self.silent, "silent"))
        if not self.active:
            raise ArgumentError("active must name at least one pattern of parameter names, such as 'head.*'.")

    def __str__(self) -> str:
        return " ".join(self.active) + (f" but {' '.join(self.silent)}" if self.silent else "")

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        named = "all parameters" if self.active == ("*",) else f"the parameters {' '.join(self.active)}"
        return named + (f" except {' '.join(self.silent)}" if self.silent else "")

    @property
    def follows_releases(self) -> bool:
        """Never."""
        return False

    @property
    def candidates(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Patterns of the parameters that are active, and of those that are left out."""
        return self.active, self.silent

    def for_one_layer(self, rows: int) -> SupportSource:
        """All of it."""
        return All()


@dataclass(frozen=True)
class TopRows(_Choosing):
    """Whole rows (entries of dimension 0) of the parameters, the highest by ``score``.

    Give ``ratio``, the share of the rows, or ``rows``, their number: of every parameter if ``per_layer``, else
    of all together. ``score`` is one that a phase before has gathered, the public magnitude of the weights
    (``weights``), or nothing (``random``). The entries of a vector are its rows. If ``choose`` is "modules", whole
    modules are taken instead, out of all together: by votes for them, or by the sum of the scores of their rows.
    """

    kind: ClassVar[str] = "top-rows"
    ratio: float | None = None
    rows: int | None = None
    score: RowRanking = "absolute"
    per_layer: bool = True
    always_active: tuple[str, ...] = ()
    choose: Chosen = "rows"

    def __post_init__(self) -> None:
        if self.ratio is None and self.rows is None:
            raise ArgumentError(
                "Say how many rows to train: give either active_ratio, their share, or rows, their number."
            )
        if self.ratio is not None and self.rows is not None:
            raise ArgumentError(
                "Give either active_ratio, a share of the rows, or rows, their number, not both."
            )
        if self.choose not in get_args(Chosen):
            raise ArgumentError(f"choose must be rows or modules, got {self.choose!r}.")
        if (self.choose == "rows" and self.score == "module-votes") or (
            self.choose == "modules" and self.score in ("votes", "counts")
        ):
            raise ArgumentError(f"A choice of {self.choose} by {self.score} makes no sense.")
        if self.ratio is not None:
            object.__setattr__(self, "ratio", check_ratio(self.ratio))
        if self.rows is not None:
            check_count("rows", self.rows)
        if self.score not in ROW_RANKINGS:
            raise ArgumentError(f"score must be one of {', '.join(ROW_RANKINGS)}, got {self.score!r}.")
        if not isinstance(self.per_layer, bool):
            raise ArgumentError(f"per_layer must be True or False, got {self.per_layer!r}.")
        object.__setattr__(self, "always_active", check_patterns(self.always_active))

    def count(self, available: int) -> int:
        """How many out of ``available`` rows are taken: floor(ratio * available) and at least one, or ``rows``."""
        return self.rows if self.rows is not None else active_count(self.ratio or 1.0, available)

    def __str__(self) -> str:
        share = f"{self.rows} {self.choose}" if self.ratio is None else f"{self.ratio:g} of {self.choose}"
        ranking = "at random" if self.score == "random" else f"by {self.score}"
        return f"{share} {ranking}" + (", per layer" if self._by_layer else "") + _suffix(self.always_active)

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        of = self.choose
        count = f"{self.rows} {of}" if self.ratio is None else f"{_percent(self.ratio)} of the {of}"
        text = (
            f"{count} at random"
            if self.score == "random"
            else f"the top {count} by {SCORE_WORDS[self.score]}"
        )
        return text + (", in each parameter" if self._by_layer else "") + _always_words(self.always_active)

    @property
    def _by_layer(self) -> bool:
        return self.per_layer and self.choose == "rows"

    @property
    def share(self) -> float | None:
        """The share of the rows, which is about that of the coordinates; modules are of different sizes."""
        return self.ratio if self.choose == "rows" else None

    @property
    def ranks_public_weights(self) -> bool:
        """If the score is the magnitude of the weights."""
        return self.score == "weights"

    @property
    def follows_releases(self) -> bool:
        """Unless the rows are drawn at random."""
        return self.score != "random"

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same choice, without patterns of names and of no more rows than there are; counts, votes: at random."""
        count = None if self.rows is None else min(self.rows, rows)
        score = "random" if self.score in ("counts", *VOTING) else self.score
        return dataclasses.replace(self, rows=count, score=score, always_active=(), choose="rows")


@dataclass(frozen=True)
class Columns(Source):
    """No support at all: the phase counts the rows of a table, column by column, before there is a model.

    ``delta`` is the part of the promised delta that is set aside for names of categories: a name appears only if more
    rows have it than one row could make up for, and that one row makes a name appear has a probability below
    ``delta`` / e^epsilon.
    """

    kind: ClassVar[str] = "columns"
    delta: float

    def __post_init__(self) -> None:
        if isinstance(self.delta, bool) or not isinstance(self.delta, int | float) or not 0 < self.delta < 1:
            raise ArgumentError(f"delta of the columns' names must lie in (0, 1), got {self.delta!r}.")
        object.__setattr__(self, "delta", float(self.delta))

    def __str__(self) -> str:
        return "columns of the table"

    @property
    def words(self) -> str:
        """What is counted, in plain English."""
        return (
            f"none: counts of the table's columns; delta {self.delta:g} is set aside for names of categories"
        )

    @property
    def share(self) -> float | None:
        """None: there is no model yet."""
        return 0.0

    @property
    def follows_releases(self) -> bool:
        """Never: nothing was released before."""
        return False

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same."""
        return self


@dataclass(frozen=True)
class AdaptiveRows(Source):
    """All coordinates but those of embedding tables, of which every step chooses rows by noisy counts of its examples.

    ``threshold`` is what a count must reach, in standard deviations of its noise. ``selection_share`` f divides the
    noise: with r = f/(1 − f), counts have the multiplier σ√(1 + r²) and gradients σ√(1 + r²)/r.
    """

    kind: ClassVar[str] = "adaptive-rows"
    threshold: float = 2.0
    selection_share: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", float(check_positive("threshold", self.threshold)))
        share = check_share("selection_share", self.selection_share, one_allowed=False)
        object.__setattr__(self, "selection_share", float(share))

    def __str__(self) -> str:
        return f"rows by counts of each step, above {self.threshold:g} deviations"

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        return (
            "all coordinates; of embedding tables, in every step, the rows whose noisy count of the step's examples "
            f"reaches {self.threshold:g} standard deviations of its noise (selection share {self.selection_share:g})"
        )

    @property
    def dense(self) -> bool:
        """Every coordinate may move."""
        return True

    def for_one_layer(self, rows: int) -> SupportSource:
        """All coordinates: a single layer has no table."""
        return All()


@dataclass(frozen=True)
class Own(Source):
    """Coordinates that a custom training loop has chosen, as often as it likes, from released values only."""

    kind: ClassVar[str] = "own"

    def __str__(self) -> str:
        return "chosen by the training loop"

    @property
    def words(self) -> str:
        """How the support is chosen, in plain English."""
        return "what the training loop chose"

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same."""
        return self


@dataclass(frozen=True)
class Stops(Source):
    """No support: the phase chooses among whole runs of training, by one noisy sum of clipped losses.

    ``at`` are the steps, counted from the start of the plan, after which a run ends and the next starts afresh.
    ``rates`` are the factors on the learning rate of each of them. ``apart`` is the share of units that no run is
    trained on and that the losses are summed over; each is among them by a secret coin.
    """

    kind: ClassVar[str] = "stops"
    at: tuple[int, ...]
    rates: tuple[float, ...]
    apart: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "apart", float(check_share("apart", self.apart, one_allowed=False)))
        if not isinstance(self.at, tuple | list) or not all(type(stop) is int for stop in self.at):
            raise ArgumentError(f"at must be a list of numbers of steps, got {self.at!r}.")
        object.__setattr__(self, "at", tuple(self.at))
        if len(self.at) < 2 or list(self.at) != sorted(set(self.at)) or self.at[0] < 1:
            raise ArgumentError(f"A choice needs at least two stops, in order, got {self.at!r}.")
        if not isinstance(self.rates, tuple | list) or len(self.rates) != len(self.at):
            raise ArgumentError(f"rates must be one number per stop, got {self.rates!r}.")
        object.__setattr__(
            self, "rates", tuple(float(check_positive("A rate to try", rate)) for rate in self.rates)
        )

    def __str__(self) -> str:
        return f"one of {len(self.at)} runs"

    @property
    def words(self) -> str:
        """What is chosen, in plain English."""
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return (
            f"none: one of {len(self.at)} whole runs, with learning rates times {rates}, is chosen by noisy losses on "
            f"{_percent(self.apart)} of the data, on which none was trained"
        )

    @property
    def otherwise(self) -> int:
        """The place of the run to take where a crash has lost the choice: the one whose rate is nearest to 1."""
        return min(range(len(self.rates)), key=lambda place: abs(math.log(self.rates[place])))

    @property
    def share(self) -> float | None:
        """None: losses are no coordinates."""
        return 0.0

    def for_one_layer(self, rows: int) -> SupportSource:
        """The same."""
        return self


def _suffix(patterns: tuple[str, ...]) -> str:
    return f", always {' '.join(patterns)}" if patterns else ""


def _always_words(patterns: tuple[str, ...]) -> str:
    return f"; always {' '.join(patterns)}" if patterns else ""


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


SupportSource = All | Random | TopK | Soft | Named | TopRows | Columns | Own | Stops | AdaptiveRows

_KINDS: Mapping[str, type[Any]] = {
    source.kind: source
    for source in (All, Random, TopK, Soft, Named, TopRows, Columns, Own, Stops, AdaptiveRows)
}


def source_to_record(source: SupportSource) -> dict[str, Any]:
    """The JSON form of a support source, told apart by its ``kind``."""
    values = {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(source).items()
    }
    if values.get("choose") == "rows":  # as plans of versions that chose nothing else
        del values["choose"]
    return {"kind": source.kind, **values}


def source_from_record(record: Any, where: str) -> SupportSource:
    """Read what ``source_to_record`` wrote; anything else is refused with the place ``where`` it stood."""
    if not isinstance(record, Mapping) or record.get("kind") not in _KINDS:
        raise FileError(f"{where} must be an object with a kind out of {', '.join(_KINDS)}.")
    source = _KINDS[record["kind"]]
    names = {field.name for field in dataclasses.fields(source)}
    given = set(record) - {"kind"}
    if given | ({"choose"} & names) != names:
        raise FileError(
            f"{where} of kind {source.kind!r} must have the fields {sorted(names)}, not {sorted(given)}."
        )
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.items()
        if name != "kind"
    }
    read: SupportSource = source(**values)
    return read
