"""A phase: a run of steps with one support rule, one clip norm and one noise multiplier."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive, check_share
from tacit.plan.sources import SCORES, All, Random, Score, SupportSource, TopK
from tacit.plan.spends import Spend


@dataclass(frozen=True)
class Draft:
    """A phase before calibration: what a method decides.

    ``budget`` is the share of epsilon that may be spent by the end of this phase, counted from the start of
    the run. Neighbouring drafts with the same budget share one noise multiplier.
    """

    name: str
    steps: int
    support: SupportSource
    updates: bool = True
    score: Score | None = None
    reset: bool = False
    budget: float = 1.0

    def __post_init__(self) -> None:
        check_count(f"The number of steps of phase {self.name!r}", self.steps)
        check_share(f"The budget of phase {self.name!r}", self.budget)


@dataclass(frozen=True)
class Phase:
    """``steps`` releases of the masked, clipped and noised gradient sum.

    Each step takes every example independently with probability ``sampling_rate``, clips the gradient on the
    support to ``clip_norm`` = C and releases the sum plus N(0, (noise_multiplier * C)^2) on the support.
    ``updates`` says whether weights move. ``score`` names the score that the phase accumulates from its
    released gradients. ``reset`` returns silent coordinates, when the phase starts, to their value before the
    warm-up.
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
        if not isinstance(self.support, All | Random | TopK):
            raise ArgumentError(f"support {where} must be All, Random or TopK, got {self.support!r}.")
        if self.score is not None and self.score not in SCORES:
            raise ArgumentError(
                f"score {where} must be one of {', '.join(SCORES)} or None, got {self.score!r}."
            )
        for name in ("updates", "reset"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} {where} must be True or False, got {getattr(self, name)!r}.")

    @property
    def spend(self) -> Spend:
        """What the whole phase pays."""
        return Spend(self.sampling_rate, self.noise_multiplier, self.steps)

    def noise_deviation(self, batch_size: int) -> float:
        """nu = sigma * C / B: the deviation of the noise on one coordinate of the averaged gradient."""
        return self.noise_multiplier * self.clip_norm / batch_size
