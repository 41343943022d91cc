"""Lower bounds on epsilon from guesses: many runs, one run, and the trade-off curve they test.

Trade-off functions: what a test of one example's presence can achieve, at best.

f(α) is the least rate of misses of any test with a rate of false alarms of at most α. A mechanism is f-DP
if no test does better for any two neighbouring data sets. The curve here is the largest one that the pairs
(ε, δ(ε)) of an accountant imply; a coarser grid of ε lowers it, so a claim is judged by slightly less than
it says, never by more.

Lower bounds on ε from guesses about which canaries were there.

Every one of m canaries takes part with probability ½, by independent coins. Whoever sees the output guesses
for some of them whether they did. A private mechanism limits how many guesses can be right, whatever the
guesser knows and however the canaries influence each other:

* Steinke, Nasr and Jagielski (2023), Theorem 5.2: under (ε, δ)-DP the number of right guesses out of r is
  at least v with probability at most P[B ≥ v] + 2mδ · max over i ≤ v of P[v > B ≥ v − i] / i, with B ~
  Binomial(r, e^ε / (1 + e^ε)).
* Mahloujifar, Melis and Chaudhuri (2024): with p_i the probability of exactly i right guesses out of r
  under f-DP, for every i: sum over t ≥ i of (t/m) p_t ≤ 1 − f(sum over t ≥ i of ((r − t + 1)/m) p_(t−1)).
  (Take a random canary, and the event that its guess is right and at least i are; with its coin turned over
  the same output makes its guess wrong. Average with Jensen's inequality, as 1 − f is concave.) Starting
  from P[at least v right] = β the constraints determine, going down, how much probability every smaller
  number needs; if it adds up to more than 1, β is impossible.

The second uses the whole curve of the claimed mechanism and is much closer; the first needs no curve.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from scipy.stats import binom

from tacit.errors import ArgumentError, check_count, check_share
from tacit.plan import Spend, epsilon_of, merge
from tacit.plan.accountants import pld_curve

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


Explains = Callable[[float, "Guesses", Tradeoff], bool]

# Scales of the noise are searched on a grid of its logarithm first, so that searches share trade-off functions.
_STEP = 0.25
_FIRST, _LAST = -12, 24


@dataclass(frozen=True)
class Guesses:
    """So many ``right`` guesses out of ``made``, about ``canaries`` canaries; the others were left open.

    ``share`` is the share of canaries that was expected to be guessed before these were looked at.
    """

    canaries: int
    made: int
    right: int
    share: float = 1.0

    def __post_init__(self) -> None:
        check_count("canaries", self.canaries)
        check_count("guesses", self.made, least=0)
        check_count("right guesses", self.right, least=0)
        if not self.right <= self.made <= self.canaries:
            raise ArgumentError(
                f"There cannot be {self.right} right guesses out of {self.made} about {self.canaries} canaries."
            )


def chance_under_dp(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of so many right guesses, or more, under (ε, δ)-DP."""
    if not guesses.right:
        return 1.0
    accuracy = float(expit(epsilon))
    at_least = binom.sf(np.arange(-1, guesses.right), guesses.made, accuracy)
    below = at_least[guesses.right - np.arange(1, guesses.right + 1)] - at_least[guesses.right]
    excess = float(np.max(below / np.arange(1, guesses.right + 1)))
    return min(1.0, float(at_least[guesses.right]) + 2 * guesses.canaries * delta * excess)


def chance_under_tradeoff(guesses: Guesses, tradeoff: Tradeoff) -> float:
    """An upper bound on the probability of so many right guesses, or more, under f-DP."""
    if not guesses.right or not is_impossible(1.0, guesses, tradeoff):
        return 1.0
    low, high = -60.0, 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if is_impossible(math.exp(middle), guesses, tradeoff) else (middle, high)
    return math.exp(high)


def is_impossible(chance: float, guesses: Guesses, tradeoff: Tradeoff) -> bool:
    """Whether f-DP rules out that so many right guesses, or more, have this probability."""
    made, share = guesses.made, 1 / guesses.canaries
    # Sums over t ≥ i of p_t times the share of canaries guessed rightly, and wrongly, when t guesses are right.
    rightly, wrongly = chance * guesses.right * share, chance * (made - guesses.right) * share
    for right in range(guesses.right - 1, -1, -1):
        needed = max(wrongly, tradeoff.least_alarms(rightly))
        rightly += right / (made - right) * (needed - wrongly)
        wrongly = needed
        if rightly + wrongly > made * share * (1 + 1e-12):
            return True
    return False


def lower_epsilon(guesses: Guesses, delta: float, confidence: float) -> float:
    """With ``confidence`` the mechanism is not (ε, ``delta``)-DP for any ε below this (Steinke et al.)."""
    error = 1 - check_share("confidence", confidence, one_allowed=False)
    if chance_under_dp(guesses, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 1.0
    while chance_under_dp(guesses, high, delta) <= error:
        low, high = high, 2 * high
    return _bisect(low, high, lambda epsilon: chance_under_dp(guesses, epsilon, delta) <= error) - 1e-4


def lower_scale(
    guesses: Guesses,
    claim: Claim,
    confidence: float,
    explains: Explains | None = None,
    below: float = math.inf,
) -> float:
    """With ``confidence`` the mechanism is less private than ``claim`` with its noise times anything above this.

    Infinite if the guesses say nothing at all. ``explains`` says whether a trade-off function can explain so many
    right guesses with a probability of at least the error: by default the one-run bound. The search gives up, with
    ``below``, where it would find nothing smaller.
    """
    error = 1 - check_share("confidence", confidence, one_allowed=False)
    can_explain = explains or _one_run_explains

    def explained(log_scale: float) -> bool:
        return can_explain(error, guesses, claim.tradeoff(math.exp(log_scale)))

    if math.isfinite(below) and explained(math.log(below)):
        return below
    last = _last(lambda step: explained(_STEP * step), _FIRST, _LAST)
    if last == _LAST:
        return math.inf
    if last < _FIRST:
        return math.exp(_STEP * _FIRST)
    return math.exp(_bisect(_STEP * last, _STEP * (last + 1), explained, tolerance=4e-3))


def _one_run_explains(error: float, guesses: Guesses, tradeoff: Tradeoff) -> bool:
    return not is_impossible(error, guesses, tradeoff)


def _last(holds: Callable[[int], bool], first: int, last: int) -> int:
    """The last number for which ``holds`` holds, where it holds up to some number and not beyond; or first - 1."""
    low, high = first - 1, last + 1
    guess = 0
    while high - low > 1:
        low, high = (guess, high) if holds(guess) else (low, guess)
        guess = (low + high) // 2
    return low


def _bisect(low: float, high: float, holds: Callable[[float], bool], tolerance: float = 1e-4) -> float:
    """Where ``holds``, true at ``low`` and false at ``high``, stops to hold, up to ``tolerance`` above it."""
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


Bits = npt.NDArray[np.bool_]

RULES = ((0.27, 0.27), (0.04, 0.04), (0.004, 0.004), (0.0, 0.1), None)
"""Shares of trials guessed to be out (the lowest scores) and in (the highest); None: all, split where it serves best.

The first is best for a faint Gaussian signal, the next two where some canaries are easy to see, the fourth under
sampling, where it is the presence of a canary that shows, the last where all of them show. A bound is the best of all,
each at its share of the error.
"""

CHOOSING = 0.25
"""Share of the trials, the first ones, on which thresholds are set; they are not counted."""

LEAST_TRIALS = 40


@dataclass(frozen=True)
class Trials:
    """One score per trial, higher where the canary seems to be in, and whether it really was."""

    scores: Floats
    present: Bits

    def __post_init__(self) -> None:
        if self.scores.shape != self.present.shape or self.scores.ndim != 1:
            raise ArgumentError(
                f"Every trial needs one score and one coin, got {self.scores.shape} and {self.present.shape}."
            )
        if np.isnan(self.scores).any():
            raise ArgumentError("A score is not a number; the canaries cannot be ranked.")

    def __len__(self) -> int:
        return len(self.scores)

    def split(self, share: float) -> tuple[Trials, Trials]:
        """The first trials, at least one, and the others."""
        first = max(1, round(share * len(self)))
        return (
            Trials(self.scores[:first], self.present[:first]),
            Trials(self.scores[first:], self.present[first:]),
        )

    def guess(self, low: float, high: float) -> Guesses:
        """Guess "out" at or below ``low``, "in" at or above ``high``, nothing between."""
        said_in, said_out = self.scores >= high, (self.scores <= low) & (self.scores < high)
        right = int((said_in & self.present).sum() + (said_out & ~self.present).sum())
        return Guesses(len(self), int(said_in.sum() + said_out.sum()), right)

    def roc(self, points: int = 51) -> list[tuple[float, float]]:
        """(false alarms, misses) of tests at rising thresholds."""
        inside, outside = np.sort(self.scores[self.present]), np.sort(self.scores[~self.present])
        if not len(inside) or not len(outside):
            return []
        thresholds = np.quantile(self.scores, (1 - np.cos(np.linspace(0, np.pi, points))) / 2)
        alarms = 1 - np.searchsorted(outside, thresholds, side="left") / len(outside)
        misses = np.searchsorted(inside, thresholds, side="left") / len(inside)
        return sorted({(round(float(a), 5), round(float(m), 5)) for a, m in zip(alarms, misses, strict=True)})


def guess_by_rules(trials: Trials) -> tuple[Guesses, ...]:
    """Guesses by each of the ``RULES``: thresholds are quantiles of the first trials, the others are counted."""
    first, counted = trials.split(CHOOSING)
    found = []
    for rule in RULES:
        low, high = _thresholds(first, rule)
        share = first.guess(low, high).made / len(first)
        found.append(replace(counted.guess(low, high), share=share))
    return tuple(found)


def _thresholds(first: Trials, rule: tuple[float, float] | None) -> tuple[float, float]:
    """At or below the first a trial is guessed to be out, at or above the second in."""
    if rule is not None:
        out, into = rule
        low = float(np.quantile(first.scores, out)) if out else -np.inf
        return low, float(np.quantile(first.scores, 1 - into))
    order = np.argsort(first.scores, kind="stable")
    inside = first.present[order]
    # Right guesses if the trials from here on are guessed to be in, and those before to be out.
    right = np.append(np.cumsum(inside[::-1])[::-1], 0) + np.append(0, np.cumsum(~inside))
    scores = first.scores[order]
    between = np.concatenate([scores[:1], (scores[:-1] + scores[1:]) / 2, [np.inf]])
    best = float(between[int(np.argmax(right))])
    return best, best
