"""Lower bounds on ε from guesses about which canaries were there.

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
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from tacit.audit.tradeoff import Claim, Tradeoff
from tacit.errors import ArgumentError, check_count, check_share

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
