"""A lower bound on ε from guesses that are independent of each other: close to tight.

Of so many trials each puts one canary in or leaves it out by a coin. Whoever sees the output guesses, or
leaves it open. If every trial is f-DP for its canary, the rates of right and wrong guesses obey right ≤ 1 −
f(wrong): for guesses "in" and for guesses "out" each because of f-DP, for their mean because 1 − f is
concave. With w + 1 − f(w) = g the share of guesses that are right is then at most (1 − f(w)) / g wherever a
share g of the trials, or more, is guessed, and the number of right guesses is binomial.
"""

from __future__ import annotations

from scipy.stats import beta, binom

from tacit.audit.one_run import Guesses
from tacit.audit.tradeoff import Tradeoff

_ERROR_OF_RATE = 0.1
"""Share of the error that is spent on the rate of guesses; the rest is for their accuracy."""


def explains_independent(error: float, guesses: Guesses, tradeoff: Tradeoff) -> bool:
    """Whether so many right guesses, or more, have at least the probability ``error`` under f-DP.

    For ``lower_scale``. Thresholds must have been chosen without looking at these trials.
    """
    if not guesses.made:
        return True
    rate = float(beta.ppf(_ERROR_OF_RATE * error, guesses.made, guesses.canaries - guesses.made + 1))
    accuracy = best_accuracy(rate, tradeoff)
    return float(binom.sf(guesses.right - 1, guesses.made, accuracy)) > (1 - _ERROR_OF_RATE) * error


def best_accuracy(rate: float, tradeoff: Tradeoff) -> float:
    """The largest share of right guesses under f-DP where at least ``rate`` of all trials is guessed."""
    low, high = 0.0, rate
    if 1 - tradeoff(0.0) >= rate:
        return 1.0
    for _ in range(60):
        wrong = (low + high) / 2
        low, high = (wrong, high) if wrong + 1 - tradeoff(wrong) < rate else (low, wrong)
    return min(1.0, 1 - low / rate)
