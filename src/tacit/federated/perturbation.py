"""Private release of one number in [−1, 1]: Duchi, piecewise, hybrid and Laplace mechanisms, exactly.

Each mechanism states its output law in full: point masses (`atoms`), a density for the rest (`density`),
the variance and the exact ε. All of them are unbiased: E[output | v] = v for v in [−1, 1]. Values outside
are clipped to the interval first, so that the guarantee holds for any input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import ArgumentError, check_positive
from tacit.federated.randomness import Uniforms

Floats = NDArray[np.float64]

BOUNDED_PERTURBATIONS = ("duchi", "pm", "hm")
PERTURBATIONS = (*BOUNDED_PERTURBATIONS, "laplace", "none")


class Perturbation(Protocol):
    """A randomised map from [−1, 1] to the reals with a known law."""

    @property
    def epsilon(self) -> float:
        """The exact ε: the supremum over outputs and inputs of the log ratio of the law."""
        ...

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        ...

    def atoms(self, value: float) -> dict[float, float]:
        """Return the outputs of positive probability and these probabilities, given ``value``."""
        ...

    def density(self, output: ArrayLike, value: float) -> Floats:
        """Return the density of the continuous part at ``output``, given ``value``."""
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

    epsilon: float

    def __post_init__(self) -> None:
        check_positive("epsilon2", self.epsilon)

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        return 1 / math.tanh(self.epsilon / 2)

    def atoms(self, value: float) -> dict[float, float]:
        """Return the two outputs and their probabilities."""
        up = float(self._up(clip(value)))
        return {-self.bound: 1 - up, self.bound: up}

    def density(self, output: ArrayLike, value: float) -> Floats:
        """Return zero: there is no continuous part."""
        return np.zeros(np.shape(output))

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | v] = bound² − v²."""
        return self.bound**2 - clip(value) ** 2

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        return np.where(
            uniforms.random(inputs.size).reshape(inputs.shape) < self._up(inputs), self.bound, -self.bound
        )

    def _up(self, value: Floats) -> Floats:
        return 0.5 + value / (2 * self.bound)


@dataclass(frozen=True)
class Piecewise:
    """PM of Wang et al.: a plateau of width C−1 around v, e^ε times as dense as the rest of [−C, C]."""

    epsilon: float

    def __post_init__(self) -> None:
        check_positive("epsilon2", self.epsilon)

    @property
    def bound(self) -> float:
        """C = (e^(ε/2)+1)/(e^(ε/2)−1), the largest magnitude an output can have."""
        return 1 / math.tanh(self.epsilon / 4)

    @property
    def plateau_share(self) -> float:
        """The probability that an output falls on the plateau: e^(ε/2)/(e^(ε/2)+1)."""
        return 1 / (1 + math.exp(-self.epsilon / 2))

    def atoms(self, value: float) -> dict[float, float]:
        """Return nothing: there is no point mass."""
        return {}

    def density(self, output: ArrayLike, value: float) -> Floats:
        """Return the density: high on the plateau [l(v), l(v)+C−1], e^−ε of that elsewhere in [−C, C]."""
        outputs = np.asarray(output, np.float64)
        left = self._left(clip(value))
        high = self.plateau_share / (self.bound - 1)
        on_plateau = (outputs >= left) & (outputs <= left + self.bound - 1)
        inside = np.abs(outputs) <= self.bound
        return np.where(on_plateau, high, np.where(inside, high * math.exp(-self.epsilon), 0.0))

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | v] = v²/(e^(ε/2)−1) + (e^(ε/2)+3)/(3(e^(ε/2)−1)²)."""
        growth = math.expm1(self.epsilon / 2)
        return clip(value) ** 2 / growth + (growth + 4) / (3 * growth**2)

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        left = self._left(inputs)
        on_plateau = uniforms.random(inputs.size).reshape(inputs.shape) < self.plateau_share
        place = uniforms.random(inputs.size).reshape(inputs.shape)
        width = self.bound - 1
        # Off the plateau: uniform on a segment of length C+1, with the plateau cut out.
        off = -self.bound + place * (self.bound + 1)
        off = np.where(off < left, off, off + width)
        return np.clip(np.where(on_plateau, left + place * width, off), -self.bound, self.bound)

    def _left(self, value: Floats) -> Floats:
        return (self.bound + 1) / 2 * value - (self.bound - 1) / 2


# The ε below which Duchi's mechanism alone has the least worst-case variance (Wang et al., about 0.61).
_ROOT = 405 * math.sqrt(241)
HYBRID_THRESHOLD = math.log((-5 + 2 * math.cbrt(6353 - _ROOT) + 2 * math.cbrt(6353 + _ROOT)) / 27)


@dataclass(frozen=True)
class Hybrid:
    """HM of Wang et al.: PM with probability 1−e^(−ε/2) if ε > 0.61, Duchi otherwise."""

    epsilon: float

    def __post_init__(self) -> None:
        check_positive("epsilon2", self.epsilon)

    @property
    def piecewise_share(self) -> float:
        """The probability that PM answers."""
        return -math.expm1(-self.epsilon / 2) if self.epsilon > HYBRID_THRESHOLD else 0.0

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        return Piecewise(self.epsilon).bound if self.piecewise_share else Duchi(self.epsilon).bound

    def atoms(self, value: float) -> dict[float, float]:
        """Return Duchi's two outputs with their probabilities in the mixture."""
        return {x: (1 - self.piecewise_share) * p for x, p in Duchi(self.epsilon).atoms(value).items()}

    def density(self, output: ArrayLike, value: float) -> Floats:
        """Return PM's density times its share."""
        return self.piecewise_share * Piecewise(self.epsilon).density(output, value)

    def variance(self, value: ArrayLike) -> Floats:
        """Return the mixture of both variances: both parts have mean v."""
        share = self.piecewise_share
        return share * Piecewise(self.epsilon).variance(value) + (1 - share) * Duchi(self.epsilon).variance(
            value
        )

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        piecewise = uniforms.random(inputs.size).reshape(inputs.shape) < self.piecewise_share
        return np.where(
            piecewise,
            Piecewise(self.epsilon).sample(inputs, uniforms),
            Duchi(self.epsilon).sample(inputs, uniforms),
        )


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

    def atoms(self, value: float) -> dict[float, float]:
        """Return nothing: there is no point mass."""
        return {}

    def density(self, output: ArrayLike, value: float) -> Floats:
        """Return the Laplace density of scale 2/ε around ``value``."""
        distance = np.abs(np.asarray(output, np.float64) - clip(value))
        return self.epsilon / 4 * np.exp(-self.epsilon / 2 * distance)

    def variance(self, value: ArrayLike) -> Floats:
        """Return Var[output | v] = 8/ε²."""
        return np.full(np.shape(value), 8 / self.epsilon**2)

    def sample(self, values: ArrayLike, uniforms: Uniforms) -> Floats:
        """Draw one output for each value."""
        inputs = clip(values)
        first, second = (-np.log1p(-uniforms.random(inputs.size)) for _ in range(2))
        return inputs + (2 / self.epsilon) * (first - second).reshape(inputs.shape)


@dataclass(frozen=True)
class Unperturbed:
    """Output the clipped value itself: a control without privacy."""

    epsilon: float = math.inf

    @property
    def bound(self) -> float:
        """The largest magnitude an output can have."""
        return 1.0

    def atoms(self, value: float) -> dict[float, float]:
        """Return the clipped value with probability 1."""
        return {float(clip(value)): 1.0}

    def density(self, output: ArrayLike, value: float) -> Floats:
        """Return zero: there is no continuous part."""
        return np.zeros(np.shape(output))

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
