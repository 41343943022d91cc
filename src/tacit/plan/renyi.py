"""Renyi divergence of the Poisson-subsampled Gaussian mechanism, and Theorem 4.1 of TP-TopK.

For P = (1-q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2) the divergence of order a is log(A_a) / (a - 1) with
A_a = E_Q[(P/Q)^a]; Mironov, Talwar and Zhang (2019) show that this direction dominates the other one, so
the value covers adding and removing an example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from tacit.plan.spends import Spend

Floats = npt.NDArray[np.float64]

_FRACTIONAL = tuple(1 + step / 10 for step in range(1, 100) if step % 10)
_WHOLE = (*range(2, 65), *(round(64 * 2 ** (step / 4)) for step in range(1, 25)))
_LEAST_NOISE_INTEGRATED = 0.1
ORDERS: tuple[float, ...] = tuple(sorted((*_FRACTIONAL, *map(float, _WHOLE))))


def _log_moment_whole(rate: float, noise: float, order: int) -> float:
    """log A_a by the binomial theorem, exact for whole orders."""
    k = np.arange(order + 1, dtype=np.float64)
    log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    log_terms = (
        log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * noise**2)
    )
    return float(logsumexp(log_terms))


def _log_moments_fractional(rate: float, noise: float, orders: Floats) -> Floats:
    """log A_a by the trapezoid rule, which converges geometrically for this analytic integrand."""
    step = min(1 / 16, noise / 4)
    z = np.arange(-12.0, float(orders.max()) / noise + 12.0, step)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + z / noise - 1 / (2 * noise**2))
    log_density = -0.5 * z * z - 0.5 * math.log(2 * math.pi) + math.log(step)
    return np.asarray(logsumexp(log_density + orders[:, None] * log_ratio, axis=1), dtype=np.float64)


@lru_cache(maxsize=256)
def _divergences(rate: float, noise: float) -> Floats:
    orders = np.asarray(ORDERS)
    if rate == 1:
        return orders / (2 * noise**2)
    log_moments = np.empty_like(orders)
    whole = orders == np.round(orders)
    log_moments[whole] = [_log_moment_whole(rate, noise, int(order)) for order in orders[whole]]
    if noise < _LEAST_NOISE_INTEGRATED:
        # The logarithm of a moment is convex in its order, so the chord between whole orders lies above it.
        known = (np.append(1.0, orders[whole]), np.append(0.0, log_moments[whole]))
        log_moments[~whole] = np.interp(orders[~whole], *known)
    else:
        log_moments[~whole] = _log_moments_fractional(rate, noise, orders[~whole])
    values: Floats = np.maximum(log_moments, 0) / (orders - 1)
    values.setflags(write=False)
    return values


def renyi_divergences(spends: Sequence[Spend]) -> Floats:
    """The Renyi divergence of the composition of ``spends`` at each order of ``ORDERS``."""
    total = np.zeros(len(ORDERS))
    for spend in spends:
        if spend.noise_multiplier == 0:
            return np.full(len(ORDERS), math.inf)
        total = total + spend.steps * _divergences(spend.sampling_rate, spend.noise_multiplier)
    return total


def theorem_4_1_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """Theorem 4.1: the least over orders a of divergence_a + log(1/delta) / (a - 1).

    This is the conversion of Mironov (2017, Proposition 3) that the paper states; it is valid and looser
    than the improved conversion of ``rdp`` and than ``pld``.
    """
    orders = np.asarray(ORDERS)
    return float(np.min(renyi_divergences(spends) + math.log(1 / delta) / (orders - 1)))
