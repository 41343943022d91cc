"""A phase: a run of steps with one support rule, one clip norm and one noise multiplier."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, get_args

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive, check_share
from tacit.plan.accountants import Spend
from tacit.plan.sources import SCORES, VOTING, Score, Statistic, SupportSource, statistic_of

ClipOrder = Literal["mask-then-clip", "clip-then-mask"]


@dataclass(frozen=True)
class Draft:
    """A phase before calibration: what a method decides.

    ``budget`` is the share of epsilon that may be spent by the end of this phase, counted from the start of
    the run. Neighbouring drafts with the same budget share one noise multiplier. ``votes`` is how many rows an example
    votes for, where the score is that of votes.
    """

    name: str
    steps: int
    support: SupportSource
    updates: bool = True
    score: Score | None = None
    reset: bool = False
    clip_order: ClipOrder = "mask-then-clip"
    budget: float = 1.0
    votes: int | None = None

    def __post_init__(self) -> None:
        check_count(f"The number of steps of phase {self.name!r}", self.steps)
        check_share(f"The budget of phase {self.name!r}", self.budget)


@dataclass(frozen=True)
class Phase:
    """``steps`` releases of the masked, clipped and noised gradient sum.

    Each step takes every example independently with probability ``sampling_rate``, clips the gradient on the
    support to ``clip_norm`` = C and releases the sum plus N(0, (noise_multiplier * C)^2) on the support.
    ``updates`` says whether weights move. ``score`` names the score that the phase accumulates from what it
    releases; some scores need another ``statistic`` than the gradient. ``reset`` returns silent coordinates,
    when the phase starts, to their value before the warm-up. ``clip_order`` "clip-then-mask" clips the gradient
    on all coordinates instead and drops the silent ones afterwards: the same sensitivity, less signal. ``votes`` is how
    many rows of every parameter, or modules, an example votes for, where the score is one of votes: nothing is clipped
    then, and C is the norm that all votes of an example have together.
    """

    name: str
    steps: int
    sampling_rate: float
    clip_norm: float
    noise_multiplier: float
    support: SupportSource
    updates: bool = True
    score: Score | None = None
    reset: bool = False
    clip_order: ClipOrder = "mask-then-clip"
    votes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError(f"A phase needs a name, got {self.name!r}.")
        where = f"of phase {self.name!r}"
        check_count(f"steps {where}", self.steps)
        check_share(f"sampling_rate {where}", self.sampling_rate)
        check_positive(f"clip_norm {where}", self.clip_norm)
        check_non_negative(f"noise_multiplier {where}", self.noise_multiplier)
        for name in ("sampling_rate", "clip_norm", "noise_multiplier"):
            object.__setattr__(self, name, float(getattr(self, name)))
        sources = get_args(SupportSource)
        if not isinstance(self.support, sources):
            names = ", ".join(source.__name__ for source in sources)
            raise ArgumentError(f"support {where} must be one of {names}, got {self.support!r}.")
        if self.score is not None and self.score not in SCORES:
            raise ArgumentError(
                f"score {where} must be one of {', '.join(SCORES)} or None, got {self.score!r}."
            )
        if (self.votes is not None) != (self.score in VOTING):
            raise ArgumentError(f"votes {where} belong to the score of votes, and to no other.")
        if self.votes is not None:
            check_count(f"votes {where}", self.votes)
        for name in ("updates", "reset"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} {where} must be True or False, got {getattr(self, name)!r}.")
        if self.clip_order not in get_args(ClipOrder):
            orders = " or ".join(get_args(ClipOrder))
            raise ArgumentError(f"clip_order {where} must be {orders}, got {self.clip_order!r}.")
        if self.updates and self.statistic != "gradient":
            raise ArgumentError(
                f"Phase {self.name!r} gathers {self.score} and so releases no gradient; it cannot update weights."
            )

    @property
    def statistic(self) -> Statistic:
        """What each step sums over the examples."""
        return statistic_of(self.score)

    @property
    def spend(self) -> Spend:
        """What the whole phase pays."""
        return Spend(self.sampling_rate, self.noise_multiplier, self.steps)

    def noise_deviation(self, batch_size: int) -> float:
        """nu = sigma * C / B: the deviation of the noise on one coordinate of the averaged gradient."""
        return self.noise_multiplier * self.clip_norm / batch_size


MOST_EPOCHS = 100_000
MOST_STEPS = 10**7


@dataclass(frozen=True)
class Schedule:
    """The steps of a run, cut into epochs: an epoch is 1/q steps, rounded at its end."""

    epoch_steps: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return sum(self.epoch_steps)

    @classmethod
    def of(cls, examples: int, batch_size: int, epochs: float) -> Schedule:
        """The schedule of ``epochs`` (a fraction shortens the last) over batches of ``batch_size``."""
        rate = batch_size / examples
        if epochs > MOST_EPOCHS or epochs / rate > MOST_STEPS:
            raise ArgumentError(
                f"{epochs:g} epochs of {examples} examples with batches of {batch_size} are too many; the most are "
                f"{MOST_EPOCHS:,} epochs and {MOST_STEPS:,} steps."
            )
        ends = [round(min(epoch, epochs) / rate) for epoch in range(math.ceil(epochs) + 1)]
        steps = tuple(end - start for start, end in itertools.pairwise(ends))
        steps = tuple(count for count in steps if count)
        if not steps:
            raise ArgumentError(
                f"{epochs:g} epochs of {examples} examples with batches of {batch_size} make no step; "
                "train longer."
            )
        return cls(steps)

    def split(self, share: float) -> tuple[int, int]:
        """The steps of a warm-up with ``share`` of the run, and the steps that are left for the rest."""
        first = round(share * self.steps)
        if not 0 < first < self.steps:
            raise ArgumentError(
                f"A share of {share:g} of {self.steps} steps leaves {first} for the warm-up and "
                f"{self.steps - first} for the rest; both need at least one, so train longer."
            )
        return first, self.steps - first

    def cut(self, *epochs: float) -> tuple[int, ...]:
        """The steps of consecutive parts of so many epochs each, and the steps that are left for the rest.

        A part of more than no epochs gets at least one step.
        """
        parts = []
        end, done = 0.0, 0
        for part in epochs:
            end += part
            whole = min(int(end), len(self.epoch_steps))
            steps = sum(self.epoch_steps[:whole])
            if whole < len(self.epoch_steps):
                steps += round((end - whole) * self.epoch_steps[whole])
            parts.append(max(steps - done, int(part > 0)))
            done += parts[-1]
        if done >= self.steps:
            raise ArgumentError(
                f"{sum(epochs):g} epochs before the last phase leave none of the run's {self.steps} steps for it; "
                "train longer."
            )
        return (*parts, self.steps - done)
