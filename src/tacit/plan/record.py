"""The plan: what a run will do and what it will cost, fixed before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tacit.errors import ArgumentError, check_count, check_positive
from tacit.plan.accountants import LEAST_DELTA, RELATION, check_accountant, epsilon_of
from tacit.plan.phase import Phase
from tacit.plan.sources import All, Named, Soft, active_count
from tacit.plan.spends import Spend


@dataclass(frozen=True)
class NoiseEnergy:
    """Expected squared noise norm of one averaged step: on all d coordinates and on the k active ones."""

    phase: str
    coordinates: int
    active: int
    dense: float
    sparse: float


@dataclass(frozen=True)
class Plan:
    """A frozen list of phases that together are (``epsilon``, ``delta``)-DP.

    The promise is for data sets that differ by one added or removed example (``relation``) and does not
    depend on any seed. ``epsilon`` is the promise; ``spent()`` is what ``accountant`` computes for it.
    ``epsilon = inf`` marks a run without noise, for comparison only.
    """

    method: str
    epsilon: float
    delta: float
    examples: int
    batch_size: int
    phases: tuple[Phase, ...]
    accountant: str = "pld"
    relation: str = RELATION

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not self.method:
            raise ArgumentError(f"A plan needs the name of its method, got {self.method!r}.")
        check_budget(self.epsilon, self.delta, self.examples)
        check_batch(self.batch_size, self.examples)
        check_accountant(self.accountant)
        if self.relation != RELATION:
            raise ArgumentError(f"The relation must be {RELATION!r}, got {self.relation!r}.")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "phases", tuple(self.phases))
        if not self.phases or not all(isinstance(phase, Phase) for phase in self.phases):
            raise ArgumentError("A plan needs at least one phase.")
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            raise ArgumentError(f"The phases of a plan need different names, got {names}.")
        for phase in self.phases:
            if not math.isclose(phase.sampling_rate, self.batch_size / self.examples, rel_tol=1e-12):
                raise ArgumentError(
                    f"Phase {phase.name!r} samples at rate {phase.sampling_rate:g}, but "
                    f"batch_size / examples is {self.batch_size / self.examples:g}."
                )

    @property
    def steps(self) -> int:
        """The number of steps, hence of releases, of the whole run."""
        return sum(phase.steps for phase in self.phases)

    @property
    def sampling_rate(self) -> float:
        """q = batch_size / examples: the probability with which each example enters a step."""
        return self.batch_size / self.examples

    def spends(self, steps: int | None = None) -> tuple[Spend, ...]:
        """What the first ``steps`` steps pay, or the whole run."""
        left = self.steps if steps is None else check_count("steps", steps, least=0)
        if left > self.steps:
            raise ArgumentError(f"The plan has {self.steps} steps, fewer than {steps}.")
        spends = []
        for phase in self.phases:
            taken = min(left, phase.steps)
            if taken:
                spends.append(Spend(phase.sampling_rate, phase.noise_multiplier, taken))
            left -= taken
        return tuple(spends)

    def spent(self, steps: int | None = None, accountant: str | None = None) -> float:
        """Epsilon after the first ``steps`` steps (default: all), by the plan's accountant or a named one."""
        return epsilon_of(self.spends(steps), self.delta, accountant or self.accountant)

    def check_promise(self) -> None:
        """Raise unless the phases keep the promise, as computed by the plan's own accountant."""
        spent = self.spent()
        if not spent <= self.epsilon:
            raise ArgumentError(
                f"The phases of this plan spend epsilon = {spent:.6g}, above the promised "
                f"{self.epsilon:.6g}; calibrate it again with make_plan."
            )

    def locate(self, step: int) -> tuple[int, int]:
        """The index of the phase that step number ``step`` (from 0) belongs to, and its number within it."""
        left = check_count("step", step, least=0)
        for index, phase in enumerate(self.phases):
            if left < phase.steps:
                return index, left
            left -= phase.steps
        raise ArgumentError(f"The plan has {self.steps} steps; there is no step number {step}.")

    def noise_at(self, release: int) -> float:
        """The noise multiplier of release number ``release`` (from 0), whichever step it serves."""
        return self.phases[self.locate(release)[0]].noise_multiplier

    def noise_energy(self, coordinates: int, active: int | None = None) -> tuple[NoiseEnergy, ...]:
        """Per phase d * nu^2 and k * nu^2 with nu = sigma * C / B, for a model of ``coordinates`` = d.

        k is floor(ratio * d) of the phase's support; give ``active`` where it says no such ratio.
        """
        return tuple(self._energies(check_count("coordinates", coordinates), active))

    def _energies(self, coordinates: int, active: int | None) -> Iterator[NoiseEnergy]:
        for phase in self.phases:
            count = self._active(phase, coordinates, active)
            variance = phase.noise_deviation(self.batch_size) ** 2
            yield NoiseEnergy(phase.name, coordinates, count, coordinates * variance, count * variance)

    @staticmethod
    def _active(phase: Phase, coordinates: int, active: int | None) -> int:
        if isinstance(phase.support, All | Soft):
            return coordinates
        ratio = None if isinstance(phase.support, Named) else phase.support.ratio
        if ratio is None or ratio == "auto":
            if active is None:
                raise ArgumentError(
                    f"The active ratio of phase {phase.name!r} depends on the model or is chosen during the run; "
                    "say how many coordinates are active to ask for its noise energy."
                )
            return min(check_count("active", active), coordinates)
        return active_count(ratio, coordinates)

    def expected_snr(
        self, gradient_energy: float, coordinates: int, captured: float = 1.0, active: int | None = None
    ) -> dict[str, float]:
        """Per phase captured * ||G||^2 / (k * nu^2): signal energy over noise energy in one averaged step.

        ``gradient_energy`` is the squared norm of the clipped mean gradient, ``captured`` the share of it on
        the support (for phases with all coordinates it is 1).
        """
        check_positive("gradient_energy", gradient_energy)
        ratios = {}
        for phase, energy in zip(self.phases, self._energies(coordinates, active), strict=True):
            share = 1.0 if isinstance(phase.support, All) else captured
            ratios[phase.name] = share * gradient_energy / energy.sparse if energy.sparse else math.inf
        return ratios

    def __str__(self) -> str:
        from tacit.plan.text import plan_text

        return plan_text(self)


def check_budget(epsilon: float, delta: float, examples: int) -> None:
    """Raise unless epsilon > 0 and 0 < delta < 1/examples: a larger delta permits publishing an example."""
    check_count("examples", examples)
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (abs(value) > 1e300 and value != math.inf)
        ):
            raise ArgumentError(f"{name} must be a number, got {value!r}.")
    if math.isnan(epsilon) or epsilon <= 0:
        raise ArgumentError(f"epsilon must be above 0, got {epsilon!r}.")
    if not LEAST_DELTA <= delta < 1:
        raise ArgumentError(f"delta must be at least {LEAST_DELTA:g} and below 1, got {delta!r}.")
    if delta >= 1 / examples:
        raise ArgumentError(
            f"delta = {delta:g} is not below 1/examples = {1 / examples:g}: it would allow publishing a "
            "whole example; choose a smaller delta."
        )


def check_batch(batch_size: int, examples: int) -> None:
    """Raise unless 1 <= batch_size <= examples."""
    check_count("batch_size", batch_size)
    if batch_size > examples:
        raise ArgumentError(f"batch_size = {batch_size} is larger than the data set of {examples} examples.")
