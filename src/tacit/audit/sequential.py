"""A lower bound on ε from trials with fresh coins: close to tight, and valid for trials that depend on earlier ones.

The trials have an order. Each puts one canary in or leaves it out by a coin; whoever sees the output guesses,
or leaves it open. Assumed of every trial, given all that happened in the trials before it: its coin is still
fair, and what its guess is made from is f-DP in the coin. Trials may differ, may be chosen by earlier ones, and
need not be independent. A trial whose coin could already be guessed from an earlier trial breaks the assumption;
then only the one-run bound holds.

Given the past, the probabilities r of a right and w of a wrong guess obey r ≤ 1 − f(w): for guesses "in" and
guesses "out" each because of f-DP, for their mean because 1 − f is concave. So (r, w) lies in a convex polygon.
Give the three outcomes of a trial the factors x = (right, wrong, open) ≥ 0 whose mean r·x₁ + w·x₂ + (1 − r −
w)·x₃ is at most 1 at every corner of it. The product of the factors over the trials is then a supermartingale
that starts at 1 and is 1/error or more with probability at most ``error`` (Ville). Any factors that are fixed
beforehand are valid; those used here are the likelihood ratios of the nearest alternative that can be rejected.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tacit.audit.bounds import Floats, Guesses, Tradeoff

_LEAST = 1e-9
"""The alternative gives every outcome at least this probability, so that no single one ends the test."""
_POINTS = 2000
"""On so many points of the border the nearest one is looked for."""


def explains_sequential(error: float, guesses: Guesses, tradeoff: Tradeoff) -> bool:
    """Whether so many right guesses are compatible with f-DP; where it holds, "no" has probability at most ``error``.

    For ``lower_scale``. Thresholds and the expected share of guesses must come from earlier trials.
    """
    if not guesses.made:
        return True
    corners, border = _allowed(tradeoff)
    factors = _factors(guesses.share, -math.log(error) / guesses.canaries, border)
    if factors is None:
        return True
    # Dividing by the largest mean at a corner makes the product a supermartingale, whatever the factors are.
    factors = factors / np.max(corners @ factors)
    outcomes = (guesses.right, guesses.made - guesses.right, guesses.canaries - guesses.made)
    return float(np.log(factors) @ outcomes) < -math.log(error)


@lru_cache(maxsize=256)
def _allowed(tradeoff: Tradeoff) -> tuple[Floats, Floats]:
    """All (right, wrong, open) that f-DP allows: the corners of the polygon, and its border with most right guesses."""
    alarms, misses = tradeoff.corners()
    # Up to here guesses can be left open; beyond, more wrong guesses leave less room for right ones. Rounded outwards.
    most = _balance(tradeoff)
    wrong = np.append(alarms[alarms < most], most)
    right = np.append(1 - misses[alarms < most], 1 - most)
    border = np.union1d(np.linspace(0, most, _POINTS), np.geomspace(_LEAST, most, _POINTS))
    corners = _outcomes(np.append(right, 0.0), np.append(wrong, 0.0))
    return np.concatenate([corners, corners[:, [1, 0, 2]]]), _outcomes(
        np.interp(border, wrong, right), border
    )


def _outcomes(right: Floats, wrong: Floats) -> Floats:
    return np.column_stack([right, wrong, np.maximum(1 - right - wrong, 0.0)])


def _balance(tradeoff: Tradeoff) -> float:
    """Where false alarms equal misses: the least rate of wrong guesses if none is left open, rounded down."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tradeoff(middle) > middle else (low, middle)
    return low


def _factors(share: float, needed: float, border: Floats) -> Floats | None:
    """Likelihood ratios of the alternative that a test of this size can just tell from all that is allowed.

    Its share of guesses is ``share``, and it diverges by ``needed`` from the nearest point of the ``border``; None
    where even guesses that are always right would not be far enough.
    """
    share = min(max(share, _LEAST), 1 - _LEAST)

    def alternative(accuracy: float) -> Floats:
        return np.maximum([share * accuracy, share * (1 - accuracy), 1 - share], _LEAST)

    # Below the best accuracy that is allowed at this share an alternative is none.
    low, high = float(np.interp(share, border[:, 0] + border[:, 1], border[:, 0])) / share, 1.0
    if low >= 1 or _nearest(alternative(high), border)[0] < needed:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        far, _ = _nearest(alternative(middle), border)
        low, high = (middle, high) if far < needed else (low, middle)
    found = alternative(high)
    _, place = _nearest(found, border)
    around = border[max(0, place - 1) : place + 2]
    finer = np.column_stack(
        [np.interp(np.linspace(0, len(around) - 1, _POINTS), np.arange(len(around)), c) for c in around.T]
    )
    _, place = _nearest(found, finer)
    return np.asarray(found / np.maximum(finer[place], _LEAST))


def _nearest(outcomes: Floats, border: Floats) -> tuple[float, int]:
    """The least Kullback-Leibler divergence of ``outcomes`` from a point of the border, and which point that is."""
    divergences = outcomes @ np.log(outcomes) - np.log(np.maximum(border, _LEAST)) @ outcomes
    place = int(np.argmin(divergences))
    return float(divergences[place]), place
