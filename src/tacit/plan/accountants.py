"""What a run pays for, and the epsilon of a composition of such spends, by the accountant of one's choice.

``pld``          privacy loss distributions, an upper bound, mostly within 0.1 % of the true value (docs: numerics)
``rdp``          Renyi differential privacy, exact divergences with the improved conversion
``theorem-4.1``  the formula printed in the TP-TopK paper: Renyi with the conversion of Mironov (2017)

All three hold for add-or-remove-one and zero-out neighbours and Poisson sampling; ``pld`` for replace-one as well.

Renyi divergence of the Poisson-subsampled Gaussian mechanism, and Theorem 4.1 of TP-TopK.

For P = (1-q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2) the divergence of order a is log(A_a) / (a - 1) with
A_a = E_Q[(P/Q)^a]; Mironov, Talwar and Zhang (2019) show that this direction dominates the other one, so
the value covers adding and removing an example.

Pessimistic accounting by privacy loss distributions (``plan/loss_distribution.py``), with the grid chosen by error.

The connect-the-dots discretisation dominates the true privacy loss distribution at any
grid width h, in both directions (adding and removing an example), so a coarse grid can only raise epsilon.
It widens the variance of one step by about h^2/6; relative to the total variance that raises epsilon by about
h^2 / (12 s^2) with s^2 the mean variance of a step. Choosing h from s therefore costs the same number of grid
points at any noise level, where a fixed width would be slow for small noise and wrong for large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import scipy

from tacit.errors import ArgumentError, check_count, check_non_negative, check_share, did_you_mean
from tacit.plan.loss_distribution import (
    ROUNDED,
    LossDistribution,
    composed_precisely,
    far_end,
    gaussian_losses,
)

RELATION = "add-or-remove-one"
"""The usual neighbouring relation: data sets that differ by one added or removed example."""
REPLACE_ONE = "replace-one"
"""Data sets of one size that differ in the contents of one example: it moves a sum by up to twice the clip norm."""
ZERO_OUT = "zero-out"
"""Data sets of one size, in one of which one example counts for nothing: it costs what adding or removing costs."""
RELATIONS = (RELATION, REPLACE_ONE, ZERO_OUT)

LEAST_DELTA = 1e-10
"""The least delta of a plan. Rounding is bounded and counted at any; figures were compared down to 1e-12."""

LEAST_NOISE = 1e-2
MOST_NOISE = 1e7
LEAST_RATE = 1e-8
LEAST_LOSS = 1e-9
MOST_STEPS = 10**7
"""Where the accountants compute; outside of it they round up."""

HOPELESS = 2000.0
"""Above this the Renyi bound is good enough: distributions of such losses fill any memory, and promise nothing."""


@dataclass(frozen=True, order=True)
class Spend:
    """``steps`` releases of N(sum, sigma^2 C^2 I), each on a Poisson sample with rate ``sampling_rate``.

    The L2 sensitivity of the sum is C under the add-or-remove-one relation, so the cost of a spend
    depends on (sampling rate, noise multiplier, steps) and on nothing else.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        check_share("sampling_rate", self.sampling_rate)
        check_non_negative("noise_multiplier", self.noise_multiplier)
        check_count("steps", self.steps)


def merge(spends: Iterable[Spend]) -> tuple[Spend, ...]:
    """Add up the steps of spends with equal sampling rate and noise multiplier, in a canonical order.

    Composition does not depend on the order of the mechanisms, so the merged spends cost the same.
    """
    steps: dict[tuple[float, float], int] = {}
    for spend in spends:
        key = (spend.sampling_rate, spend.noise_multiplier)
        steps[key] = steps.get(key, 0) + spend.steps
    return tuple(Spend(rate, noise, count) for (rate, noise), count in sorted(steps.items()))


def in_range(spend: Spend) -> Spend:
    """A spend that costs at least as much, with figures that arithmetic can hold: more sampling, less noise."""
    rate = max(spend.sampling_rate, LEAST_RATE)
    # A step's privacy loss is about rate / noise; beside 1 it must keep its digits.
    noise = min(float(spend.noise_multiplier), MOST_NOISE, rate / LEAST_LOSS)
    return Spend(rate, noise, spend.steps)


def _rdp_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """The least over orders of the conversion of Canonne, Kamath and Steinke (2020, Proposition 12).

    Where the divergence is so small that δ ≤ √(1 - e^-divergence) already holds, ε is 0.
    """
    orders, divergences = np.asarray(ORDERS), renyi_divergences(spends)
    converted = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    converted[delta**2 + np.expm1(-divergences) > 0] = 0.0
    return max(0.0, float(converted.min()))


Floats = npt.NDArray[np.float64]

_FRACTIONAL = tuple(1 + step / 10 for step in range(1, 100) if step % 10)
_WHOLE = (*range(2, 65), *(round(64 * 2 ** (step / 4)) for step in range(1, 25)))
_LEAST_NOISE_INTEGRATED = 0.1
ORDERS: tuple[float, ...] = tuple(sorted((*_FRACTIONAL, *map(float, _WHOLE))))


def _log_moment_whole(rate: float, noise: float, order: int) -> float:
    """log A_a by the binomial theorem, exact for whole orders."""
    k = np.arange(order + 1, dtype=np.float64)
    log_choose = (
        scipy.special.gammaln(order + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(order - k + 1)
    )
    log_terms = (
        log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * noise**2)
    )
    largest = float(log_terms.max())
    return largest + math.log(float(np.exp(log_terms - largest).sum()))


def _log_moments_fractional(rate: float, noise: float, orders: Floats) -> Floats:
    """log A_a by the trapezoid rule, which converges geometrically for this analytic integrand."""
    step = min(1 / 16, noise / 4)
    z = np.arange(-12.0, float(orders.max()) / noise + 12.0, step)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + z / noise - 1 / (2 * noise**2))
    log_density = -0.5 * z * z - 0.5 * math.log(2 * math.pi) + math.log(step)
    return np.asarray(
        scipy.special.logsumexp(log_density + orders[:, None] * log_ratio, axis=1), dtype=np.float64
    )


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


def renyi_cost(spends: Iterable[Spend]) -> Floats:
    """An upper bound on the Renyi divergence of ``spends`` at each order, rounded up as ``epsilon_of`` does."""
    merged = merge(in_range(spend) for spend in spends)
    if (
        any(spend.noise_multiplier < LEAST_NOISE for spend in merged)
        or sum(spend.steps for spend in merged) > MOST_STEPS
    ):
        return np.full(len(ORDERS), math.inf)
    return renyi_divergences(merged)


def theorem_4_1_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """Theorem 4.1: the least over orders a of divergence_a + log(1/delta) / (a - 1).

    This is the conversion of Mironov (2017, Proposition 3) that the paper states; it is valid and looser
    than the improved conversion of ``rdp`` and than ``pld``.
    """
    orders = np.asarray(ORDERS)
    return float(np.min(renyi_divergences(spends) + math.log(1 / delta) / (orders - 1)))


FINE = 1e-3
"""Relative error of epsilon that the grid of every promised figure aims at."""

COARSE = 8e-3
"""The same for figures that only steer a search."""

_USUALLY_ADDED = 1e-13  # per step
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
    reach = far_end(rate, noise, log_truncation)
    exponent = (2 * reach - 1) / (2 * noise**2)
    return exponent if rate == 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _grid_width(
    spends: Sequence[Spend], tolerance: float, log_truncation: int, relation: str = RELATION
) -> float:
    # A replaced example moves the noisy value about twice as far, and its loss with it.
    times = 2.0 if relation == REPLACE_ONE else 1.0
    steps = sum(spend.steps for spend in spends)
    variance = times**2 * sum(
        spend.steps * _loss_variance(spend.sampling_rate, spend.noise_multiplier) for spend in spends
    )
    width = min(_WIDEST, math.sqrt(12 * tolerance * variance / steps))
    # Rare and large losses would need a grid of any length; a coarser one is looser, and still a bound.
    width = max(width, times * max(_largest_loss(spend, log_truncation) for spend in spends) / _MOST_POINTS)
    # Powers of two, so that searches over one spend reuse the composed distribution of another.
    return float(2.0 ** math.floor(math.log2(width)))


@lru_cache(maxsize=64)
def _composed(spend: Spend, width: float, log_truncation: int, replaced: bool) -> LossDistribution:
    step = _one_step(spend.sampling_rate, spend.noise_multiplier, width, log_truncation, replaced)
    return step.times(spend.steps)


@lru_cache(maxsize=16)
def _one_step(
    rate: float, noise: float, width: float, log_truncation: int, replaced: bool
) -> LossDistribution:
    """The loss of one step; a run asks for it at many numbers of steps."""
    return gaussian_losses(rate, noise, width, log_truncation, replaced)


def pld_epsilon(
    spends: Sequence[Spend], delta: float, tolerance: float = FINE, relation: str = RELATION
) -> float:
    """An upper bound on the epsilon of the composition of ``spends`` at ``delta``.

    Valid for neighbours by ``relation``. ``tolerance`` steers only how far above the true value it lies.
    """
    if not spends:
        return 0.0
    if any(spend.noise_multiplier == 0 for spend in spends):
        return math.inf
    return min(total.epsilon_at(delta) for total in _totals(spends, delta, tolerance, relation))


def pld_curve(
    spends: Sequence[Spend], points: int, least: float = 1e-9, relation: str = RELATION, power: float = 1.0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Epsilons from 0 to where delta is ``least``, and upper bounds on the deltas of ``spends`` there.

    Valid for neighbours by ``relation``, as ``pld_epsilon``. A ``power`` above 1 puts more of the points near 0. Every
    spend must have noise.
    """
    totals = _totals(spends, least, FINE, relation, whole=True)
    end = max(1e-6, min(total.epsilon_at(least) for total in totals))
    epsilons = end * np.linspace(0.0, 1.0, points) ** power
    return epsilons, np.asarray(np.min([total.delta_at(epsilons) for total in totals], axis=0))


def _totals(
    spends: Sequence[Spend], delta: float, tolerance: float, relation: str, whole: bool = False
) -> list[LossDistribution]:
    """Distributions that all dominate the loss of ``spends``: the least δ, and the least ε, holds.

    They are precise around ``delta``; with ``whole``, at any larger one as well.
    """
    # The tail cut off from each step counts as certain disclosure: in all less than a 1e-5 part of delta.
    # In steps of 5, again for reuse.
    log_truncation = 5 * math.floor(math.log(1e-5 * delta / sum(spend.steps for spend in spends)) / 5)
    width = _grid_width(spends, tolerance, log_truncation, relation)
    replaced = relation == REPLACE_ONE
    found = []
    # Usual sizes say beforehand whether doubles are good enough; what was added says it afterwards.
    if whole or _USUALLY_ADDED * sum(spend.steps for spend in spends) <= ROUNDED * delta:
        first, *others = (_composed(spend, width, log_truncation, replaced) for spend in spends)
        found = [reduce(LossDistribution.and_then, others, first)]
        if found[0].added <= ROUNDED * delta:
            return found
    parts = [
        (_one_step(spend.sampling_rate, spend.noise_multiplier, width, log_truncation, replaced), spend.steps)
        for spend in spends
    ]
    return [*found, composed_precisely(parts, delta)]


ACCOUNTANTS: Mapping[str, Callable[[Sequence[Spend], float], float]] = MappingProxyType(
    {"pld": pld_epsilon, "rdp": _rdp_epsilon, "theorem-4.1": theorem_4_1_epsilon}
)


def check_accountant(name: str) -> str:
    """Return ``name`` if it is a known accountant."""
    if name not in ACCOUNTANTS:
        hint = did_you_mean(name, ACCOUNTANTS)
        raise ArgumentError(f"Unknown accountant {name!r}: choose one of {', '.join(ACCOUNTANTS)}{hint}")
    return name


def check_relation(relation: str, accountant: str = "pld") -> str:
    """Return ``relation`` if it is known and the accountant can account for it."""
    if relation not in RELATIONS:
        hint = did_you_mean(relation, RELATIONS)
        raise ArgumentError(f"Unknown relation {relation!r}: choose one of {', '.join(RELATIONS)}{hint}")
    if relation == REPLACE_ONE and accountant != "pld":
        raise ArgumentError(f"The accountant {accountant} does not account for {REPLACE_ONE}; choose pld.")
    return relation


def epsilon_of(
    spends: Iterable[Spend], delta: float, accountant: str = "pld", relation: str = RELATION
) -> float:
    """The epsilon for which the composition of ``spends`` is (epsilon, ``delta``)-DP, per ``accountant``.

    ``relation`` says which data sets are neighbours.

    Composes once per distinct (sampling rate, noise multiplier) with its number of steps. Without spends it
    is 0; with a spend that adds no noise, or next to none, it is infinite. Where arithmetic would give out the
    figure is rounded up: less noise than LEAST_NOISE counts as none, more than MOST_NOISE as MOST_NOISE, a rarer
    sampling than LEAST_RATE as LEAST_RATE, a step that costs next to nothing as one that costs LEAST_LOSS, and more
    than MOST_STEPS steps cost everything.
    """
    if not 0 < delta < 1:
        raise ArgumentError(f"delta must lie in (0, 1), got {delta!r}.")
    merged = merge(in_range(spend) for spend in spends)
    if not merged:
        return 0.0
    if any(spend.noise_multiplier < LEAST_NOISE for spend in merged):
        return math.inf
    if sum(spend.steps for spend in merged) > MOST_STEPS:
        return math.inf
    check_relation(relation, check_accountant(accountant))
    if relation == REPLACE_ONE:
        halved = [Spend(s.sampling_rate, s.noise_multiplier / 2, s.steps) for s in merged]
        return (
            math.inf
            if _rdp_epsilon(halved, delta) > HOPELESS
            else pld_epsilon(merged, delta, relation=relation)
        )
    if accountant == "pld" and (bound := _rdp_epsilon(merged, delta)) > HOPELESS:
        return bound
    return ACCOUNTANTS[accountant](merged, delta)
