"""Private release of one number in [−1, 1]: Duchi, piecewise and hybrid mechanisms on a lattice, exactly.

An output is a whole number of steps of 2⁻²⁰. Which steps are possible follows from ε alone, never from the
value; how many tickets each has (see `ratios`) is a whole number, and the one that is drawn decides. So the
probability of every output is an exact rational number, and the ratio for any two values is at most e^ε as
a fact about whole numbers. `probability` states it.

Values are clipped to [−1, 1] first, so that the guarantee holds for any input. E[output | v] = v up to the
rounding of v to the lattice: the bias is at most half a step, 2⁻²¹.

Laplace noise and no noise are controls for simulations: continuous, in floating point, and no client answers
with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import ArgumentError, check_positive
from tacit.federated.lattice import STEP, STEPS_PER_UNIT, Plateau, TwoPoints, check_epsilon, log_ratio
from tacit.federated.sampling import Uniforms

Floats = NDArray[np.float64]

BOUNDED_PERTURBATIONS = ("duchi", "pm", "hm")
PERTURBATIONS = (*BOUNDED_PERTURBATIONS, "laplace", "none")

# Outputs reach to about 4/ε₂. Below the least ε₂ an answer is almost pure noise, and a server would need thousands;
# above the most there is no privacy worth the name, and the plateau of the piecewise mechanism is under a thousand
# steps wide.
LEAST_EPSILON2 = 0.01
MOST_EPSILON2 = 16.0


class Perturbation(Protocol):
    """A randomised map from [−1, 1] to the reals with a known law."""

    @property
    def epsilon(self) -> float:
        """The exact ε, rounded up: the supremum over outputs and inputs of the log ratio of the law."""
        ...

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        ...

    def landmarks(self, value: float) -> Floats:
        """Return outputs among which the law given ``value`` takes every level that it has."""
        ...

    def log_law(self, outputs: Floats, value: float) -> Floats:
        """Return ln of the probability (of the density, for Laplace) of ``outputs``, given ``value``."""
        ...

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | value]."""
        ...

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each of ``values``, which are clipped to [−1, 1]."""
        ...


def clip(values: ArrayLike) -> Floats:
    """Return ``values`` clipped to [−1, 1], with anything that is not a number counted as 0."""
    return np.clip(np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)


@dataclass(frozen=True)
class Duchi:
    """Duchi et al.: output ±(e^ε+1)/(e^ε−1), + with probability ½ + v(e^ε−1)/(2e^ε+2)."""

    requested: float

    def __post_init__(self) -> None:
        _check_epsilon2(self.requested)

    @cached_property
    def lattice(self) -> TwoPoints:
        """The two outputs and the range of their tickets."""
        return TwoPoints.within(self.requested)

    @cached_property
    def epsilon(self) -> float:
        """The exact ε, rounded up."""
        return log_ratio(self.lattice.high, self.lattice.low)

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        return self.lattice.reach * STEP

    def probability(self, step: int, value: float) -> Fraction:
        """Return the exact probability of an output."""
        if abs(step) != self.lattice.reach:
            return Fraction(0)
        up = int(self.lattice.tickets(clip(value)))
        return Fraction(up if step > 0 else self.lattice.total - up, self.lattice.total)

    def landmarks(self, value: float) -> Floats:
        """Return the two outputs."""
        return np.array([-self.bound, self.bound])

    def log_law(self, outputs: Floats, value: float) -> Floats:
        """Return ln of the probability of each output."""
        return _log_law(self, outputs, value)

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | v] = bound² − v², with v as near as the lattice has it."""
        points = self.lattice
        mean = clip(value) * (self.bound * (points.high - points.low) / points.total)
        return self.bound**2 - mean**2

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        drawn = uniforms.integers(0, self.lattice.total, inputs.size).reshape(inputs.shape)
        return np.asarray(self.lattice.place(drawn, self.lattice.tickets(inputs)) * STEP, np.float64)


@dataclass(frozen=True)
class Piecewise:
    """PM of Wang et al.: a plateau of width C−1 around v, e^ε times as likely as the rest of [−C, C]."""

    requested: float

    def __post_init__(self) -> None:
        _check_epsilon2(self.requested)

    @cached_property
    def lattice(self) -> Plateau:
        """The plateau and its tickets."""
        return Plateau.within(self.requested)

    @cached_property
    def epsilon(self) -> float:
        """The exact ε, rounded up."""
        return log_ratio(self.lattice.high, self.lattice.low)

    @property
    def bound(self) -> float:
        """C = (e^(ε/2)+1)/(e^(ε/2)−1) to a few steps: the largest magnitude an output can have."""
        return self.lattice.reach * STEP

    def probability(self, step: int, value: float) -> Fraction:
        """Return the exact probability of an output."""
        lattice = self.lattice
        if abs(step) > lattice.reach:
            return Fraction(0)
        on_plateau = abs(step - int(lattice.centers(clip(value)))) <= lattice.half
        return Fraction(lattice.high if on_plateau else lattice.low, lattice.total)

    def landmarks(self, value: float) -> Floats:
        """Return both ends of the range, the first and last step of the plateau, and their neighbours outside."""
        lattice = self.lattice
        center = int(lattice.centers(clip(value)))
        first, last = center - lattice.half, center + lattice.half
        steps = np.array([-lattice.reach, first - 1, first, last, last + 1, lattice.reach])
        return np.asarray(steps[np.abs(steps) <= lattice.reach] * STEP, np.float64)

    def log_law(self, outputs: Floats, value: float) -> Floats:
        """Return ln of the probability of each output."""
        return _log_law(self, outputs, value)

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | v] = v²/(e^(ε/2)−1) + (e^(ε/2)+3)/(3(e^(ε/2)−1)²), to a few steps."""
        growth = math.expm1(self.requested / 2)
        return clip(value) ** 2 / growth + (growth + 4) / (3 * growth**2)

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        drawn = uniforms.integers(0, self.lattice.total, inputs.size).reshape(inputs.shape)
        return np.asarray(self.lattice.place(drawn, self.lattice.centers(inputs)) * STEP, np.float64)


# The ε below which Duchi's mechanism alone has the least worst-case variance (Wang et al., about 0.61).
_ROOT = 405 * math.sqrt(241)
HYBRID_THRESHOLD = math.log((-5 + 2 * math.cbrt(6353 - _ROOT) + 2 * math.cbrt(6353 + _ROOT)) / 27)

_COINS = 2**53


@dataclass(frozen=True)
class Hybrid:
    """HM of Wang et al.: PM with probability 1−e^(−ε/2) if ε > 0.61, Duchi otherwise.

    Which of the two answers does not depend on the value, so the ratio is at most the larger of theirs.
    """

    requested: float

    def __post_init__(self) -> None:
        _check_epsilon2(self.requested)

    @property
    def piecewise_share(self) -> Fraction:
        """The probability that PM answers."""
        if self.requested <= HYBRID_THRESHOLD:
            return Fraction(0)
        return Fraction(round(-math.expm1(-self.requested / 2) * _COINS), _COINS)

    @cached_property
    def piecewise(self) -> Piecewise:
        """The part that answers with `piecewise_share`."""
        return Piecewise(self.requested)

    @cached_property
    def duchi(self) -> Duchi:
        """The part that answers otherwise."""
        return Duchi(self.requested)

    @property
    def epsilon(self) -> float:
        """The exact ε of the part with the larger one."""
        return max(self.piecewise.epsilon, self.duchi.epsilon) if self.piecewise_share else self.duchi.epsilon

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        return self.piecewise.bound if self.piecewise_share else self.duchi.bound

    def probability(self, step: int, value: float) -> Fraction:
        """Return the exact probability of an output."""
        share = self.piecewise_share
        return share * self.piecewise.probability(step, value) + (1 - share) * self.duchi.probability(
            step, value
        )

    def landmarks(self, value: float) -> Floats:
        """Return those of both parts."""
        if not self.piecewise_share:
            return self.duchi.landmarks(value)
        return np.concatenate([self.piecewise.landmarks(value), self.duchi.landmarks(value)])

    def log_law(self, outputs: Floats, value: float) -> Floats:
        """Return ln of the probability of each output."""
        return _log_law(self, outputs, value)

    def variance(self, value: ArrayLike) -> Floats:
        """Return the mixture of both variances: both parts have mean v."""
        share = float(self.piecewise_share)
        return share * self.piecewise.variance(value) + (1 - share) * self.duchi.variance(value)

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        coins = uniforms.integers(0, _COINS, inputs.size).reshape(inputs.shape)
        return np.where(
            coins < int(self.piecewise_share * _COINS),
            self.piecewise.sample(inputs, uniforms),
            self.duchi.sample(inputs, uniforms),
        )


def _log_law(mechanism: Duchi | Piecewise | Hybrid, outputs: Floats, value: float) -> Floats:
    # The law is constant from each of these steps up to the next.
    marks = np.rint(mechanism.landmarks(value) * STEPS_PER_UNIT).astype(np.int64)
    starts = np.unique(np.concatenate([[-(2**62)], marks, marks + 1]))
    chances = [mechanism.probability(int(start), value) for start in starts]
    logs = [
        math.log(chance.numerator) - math.log(chance.denominator) if chance else -math.inf
        for chance in chances
    ]
    steps = np.rint(outputs * STEPS_PER_UNIT).astype(np.int64)
    return np.array(logs)[np.searchsorted(starts, steps, side="right") - 1]


def _check_epsilon2(epsilon: float) -> None:
    check_epsilon("epsilon2", epsilon, LEAST_EPSILON2, MOST_EPSILON2)


@dataclass(frozen=True)
class Laplace:
    """Output v + Laplace noise of scale 2/ε, without bound: a control."""

    epsilon: float

    def __post_init__(self) -> None:
        check_positive("epsilon2", self.epsilon)

    @property
    def bound(self) -> float:
        """There is none."""
        return math.inf

    def landmarks(self, value: float) -> Floats:
        """Return the value and a place beyond every value on either side."""
        return np.array([-3.0, float(clip(value)), 3.0])

    def log_law(self, outputs: Floats, value: float) -> Floats:
        """Return ln of the Laplace density of scale 2/ε around ``value``."""
        return math.log(self.epsilon / 4) - self.epsilon / 2 * np.abs(outputs - clip(value))

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | v] = 8/ε²."""
        return np.full(np.shape(value), 8 / self.epsilon**2)

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        first, second = (-np.log1p(-uniforms.integers(0, _COINS, inputs.size) / _COINS) for _ in range(2))
        return inputs + (2 / self.epsilon) * (first - second).reshape(inputs.shape)


@dataclass(frozen=True)
class Unperturbed:
    """Output the clipped value itself: a control without privacy."""

    epsilon: float = math.inf

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        return 1.0

    def landmarks(self, value: float) -> Floats:
        """Return the clipped value."""
        return np.array([float(clip(value))])

    def log_law(self, outputs: Floats, value: float) -> Floats:
        """Return 0 at the clipped value, −∞ elsewhere."""
        return np.where(outputs == clip(value), 0.0, -math.inf)

    def variance(self, value: ArrayLike) -> Floats:
        """Return zero."""
        return np.zeros(np.shape(value))

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Return the clipped values."""
        return clip(values)


def perturbation(name: str, epsilon: float) -> Perturbation:
    """Return the value perturbation called ``name`` at ``epsilon``; ``none`` ignores it."""
    match name:
        case "duchi":
            return Duchi(epsilon)
        case "pm":
            return Piecewise(epsilon)
        case "hm":
            return Hybrid(epsilon)
        case "laplace":
            return Laplace(epsilon)
        case "none":
            return Unperturbed()
    raise ArgumentError(f"There is no perturbation {name!r}; choose one of {', '.join(PERTURBATIONS)}.")
