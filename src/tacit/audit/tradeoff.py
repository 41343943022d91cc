"""Trade-off functions: what a test of one example's presence can achieve, at best.

f(α) is the least rate of misses of any test with a rate of false alarms of at most α. A mechanism is f-DP
if no test does better for any two neighbouring data sets. The curve here is the largest one that the pairs
(ε, δ(ε)) of an accountant imply; a coarser grid of ε lowers it, so a claim is judged by slightly less than
it says, never by more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacit.plan import Spend, epsilon_of, merge
from tacit.plan.pld import pld_curve

Floats = npt.NDArray[np.float64]

_POINTS = 1000


class Tradeoff:
    """A convex, falling curve: the maximum of lines, symmetric in false alarms and misses.

    Made from rising ``epsilons`` that start at 0 and the δ of each.
    """

    def __init__(self, epsilons: Floats, deltas: Floats) -> None:
        # f(α) = max over ε of 0, 1 − δ − e^ε α and e^−ε (1 − δ − α), from the steepest line to the flattest.
        slopes = np.concatenate([-np.exp(epsilons[:0:-1]), -np.exp(-epsilons), [0.0]])
        heights = np.concatenate([1 - deltas[:0:-1], np.exp(-epsilons) * (1 - deltas), [0.0]])
        self._slopes, self._heights, self._starts = _envelope(slopes.tolist(), heights.tolist())

    def __call__(self, false_alarms: float) -> float:
        """The least rate of misses at this rate of false alarms."""
        line = bisect_right(self._starts, false_alarms) - 1
        return self._heights[line] + self._slopes[line] * false_alarms

    def corners(self) -> tuple[Floats, Floats]:
        """The curve's ends and every point where one line takes over from another, as (false alarms, misses)."""
        alarms = np.array([0.0, *(start for start in self._starts if 0 < start < 1), 1.0])
        return alarms, np.array([max(0.0, self(float(alarm))) for alarm in alarms])

    def least_alarms(self, hits: float) -> float:
        """The least rate of false alarms of a test that hits with this rate: the inverse of 1 − f."""
        return max(0.0, self(1 - hits))

    def curve(self, points: int = 51) -> list[tuple[float, float]]:
        """The curve as pairs (false alarms, misses), denser towards the ends, for showing."""
        alarms = (1 - np.cos(np.linspace(0, math.pi, points))) / 2
        return [(round(float(a), 5), round(max(0.0, self(float(a))), 5)) for a in alarms]


def _envelope(slopes: list[float], heights: list[float]) -> tuple[list[float], list[float], list[float]]:
    """The upper envelope of lines with strictly rising slopes: its lines, and where each one begins."""
    kept: list[tuple[float, float, float]] = []
    for slope, height in zip(slopes, heights, strict=True):
        start = -math.inf
        while kept:
            below, level, began = kept[-1]
            start = (level - height) / (slope - below)
            if start > began:
                break
            kept.pop()
            start = -math.inf
        kept.append((slope, height, start))
    return [line[0] for line in kept], [line[1] for line in kept], [line[2] for line in kept]


@dataclass(frozen=True)
class Claim:
    """A claim to be audited: the composition of ``spends`` with all noise times ``scale``, at ``delta``.

    ``scale`` = 1 is what is claimed. Smaller scales are the hypotheses that a lower bound is looked for
    among.
    """

    spends: tuple[Spend, ...]
    delta: float

    def scaled(self, scale: float) -> tuple[Spend, ...]:
        """The spends with their noise multipliers times ``scale``."""
        return merge(
            Spend(spend.sampling_rate, spend.noise_multiplier * scale, spend.steps) for spend in self.spends
        )

    def epsilon(self, scale: float = 1.0) -> float:
        """ε at the claim's δ."""
        return epsilon_of(self.scaled(scale), self.delta)

    def tradeoff(self, scale: float = 1.0) -> Tradeoff:
        """The trade-off function."""
        return _tradeoff(self.scaled(scale))


@lru_cache(maxsize=256)
def _tradeoff(spends: tuple[Spend, ...]) -> Tradeoff:
    return Tradeoff(*pld_curve(spends, _POINTS))
