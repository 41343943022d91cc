"""Pessimistic privacy-loss-distribution accounting on ``dp-accounting``, with the grid chosen by error.

The connect-the-dots discretisation of ``dp-accounting`` dominates the true privacy loss distribution at any
grid width h, in both directions (adding and removing an example), so a coarse grid can only raise epsilon.
It widens the variance of one step by about h^2/6; relative to the total variance that raises epsilon by about
h^2 / (12 s^2) with s^2 the mean variance of a step. Choosing h from s therefore costs the same number of grid
points at any noise level, where a fixed width would be slow for small noise and wrong for large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import privacy_loss_distribution as pld

from tacit.plan.spends import Spend

FINE = 1e-3
"""Relative error of epsilon that the grid of every promised figure aims at."""

COARSE = 8e-3
"""The same for figures that only steer a search."""

_WIDEST = 0.05
_MOST_POINTS = 2**16


@lru_cache(maxsize=1024)
def _loss_variance(rate: float, noise: float) -> float:
    """Variance of the privacy loss log(P/Q) of one step under P = (1-q) N(0, s^2) + q N(1, s^2)."""
    x = np.linspace(-9.0 * noise, 1 + 9.0 * noise, 4001)
    without = np.exp(-0.5 * (x / noise) ** 2)
    weight = (1 - rate) * without + rate * np.exp(-0.5 * ((x - 1) / noise) ** 2)
    weight /= weight.sum()
    exponent = (2 * x - 1) / (2 * noise**2)
    loss = exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
    mean = float(weight @ loss)
    return float(weight @ (loss - mean) ** 2)


def _largest_loss(spend: Spend, log_truncation: int) -> float:
    """The largest privacy loss of one step that is not cut off with the tail."""
    rate, noise = spend.sampling_rate, spend.noise_multiplier
    reach = 1 + math.sqrt(-2 * log_truncation) * noise
    exponent = (2 * reach - 1) / (2 * noise**2)
    return exponent if rate == 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _grid_width(spends: Sequence[Spend], tolerance: float, log_truncation: int) -> float:
    steps = sum(spend.steps for spend in spends)
    variance = sum(
        spend.steps * _loss_variance(spend.sampling_rate, spend.noise_multiplier) for spend in spends
    )
    width = min(_WIDEST, math.sqrt(12 * tolerance * variance / steps))
    # Rare and large losses would need a grid of any length; a coarser one is looser, and still a bound.
    width = max(width, max(_largest_loss(spend, log_truncation) for spend in spends) / _MOST_POINTS)
    # Powers of two, so that searches over one spend reuse the composed distribution of another.
    return float(2.0 ** math.floor(math.log2(width)))


@lru_cache(maxsize=64)
def _composed(spend: Spend, width: float, log_truncation: int) -> Any:
    return pld.from_gaussian_mechanism(
        spend.noise_multiplier,
        sampling_prob=spend.sampling_rate,
        value_discretization_interval=width,
        log_mass_truncation_bound=log_truncation,
        pessimistic_estimate=True,
        use_connect_dots=True,
    ).self_compose(spend.steps)


def pld_epsilon(spends: Sequence[Spend], delta: float, tolerance: float = FINE) -> float:
    """An upper bound on the epsilon of the composition of ``spends`` at ``delta``.

    Valid for add-or-remove-one neighbours. ``tolerance`` steers only how far above the true value it lies.
    """
    if not spends:
        return 0.0
    if any(spend.noise_multiplier == 0 for spend in spends):
        return math.inf
    return float(_total(spends, delta, tolerance).get_epsilon_for_delta(delta))


def pld_curve(
    spends: Sequence[Spend], points: int, least: float = 1e-9
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Epsilons from 0 to where delta is ``least``, and upper bounds on the deltas of ``spends`` there.

    Valid for add-or-remove-one neighbours, as ``pld_epsilon``. Every spend must have noise.
    """
    total = _total(spends, least, FINE)
    epsilons = np.linspace(0.0, max(1e-6, float(total.get_epsilon_for_delta(least))), points)
    return epsilons, np.asarray(total.get_delta_for_epsilon(epsilons.tolist()), np.float64)


def _total(spends: Sequence[Spend], delta: float, tolerance: float) -> Any:
    # The tail cut off from each step counts as certain disclosure: in all less than a 1e-5 part of delta.
    # In steps of 5, again for reuse.
    log_truncation = 5 * math.floor(math.log(1e-5 * delta / sum(spend.steps for spend in spends)) / 5)
    width = _grid_width(spends, tolerance, log_truncation)
    total = _composed(spends[0], width, log_truncation)
    for spend in spends[1:]:
        total = total.compose(_composed(spend, width, log_truncation))
    return total
