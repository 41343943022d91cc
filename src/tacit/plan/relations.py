"""Which data sets count as neighbours, and what a promise for one unit says about several.

For units drawn by Poisson sampling, in units of the clip norm and with s the noise multiplier:

``add-or-remove-one``  a unit is there or not: (1-q) N(0, s²) + q N(1, s²) against N(0, s²), both ways round
``zero-out``           its contribution counts or is zero, and the number of units stays: the same two
``replace-one``        its contribution is any other one: the first against (1-q) N(0, s²) + q N(-1, s²)

k units that are added or removed together are drawn as a binomial number of them, at worst all in one direction: a
mixture of N(j, s²) with binomial weights against N(0, s²), which dominates (Ganesh 2024, mixture of Gaussians). For
k units that are replaced, the bound of group privacy follows from the curve of one: from (ε, δ) for one to
(kε, δ (e^{kε} - 1) / (e^ε - 1)) for k. It needs the curve at a δ so small that it cannot be computed for many units;
then nothing is stated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
import numpy.typing as npt
import scipy

from tacit.plan.accountants import (
    HOPELESS,
    LEAST_DELTA,
    LEAST_NOISE,
    MOST_STEPS,
    REPLACE_ONE,
    Spend,
    in_range,
    merge,
    pld_curve,
)
from tacit.plan.loss_distribution import ROUNDED, LossDistribution, composed_precisely, connect_the_dots

Floats = npt.NDArray[np.float64]

GROUPS = (1, 2, 5, 10)
"""Numbers of units acting together for which a certificate states ε."""
LEAST = 1e-9
"""The curve of a certificate ends where δ is this small."""
POINTS = 513
"""Points of the curve in a certificate."""

_TABLE = 4096
_MOST_POINTS = 2**16


def group_epsilons(
    spends: Sequence[Spend], delta: float, relation: str, sizes: Sequence[int] = GROUPS
) -> tuple[tuple[int, float], ...]:
    """For each size of a group of units that act together, an upper bound on its ε at ``delta``, where there is one."""
    merged = merge(in_range(spend) for spend in spends)
    if not _computable(merged):
        return ()
    if relation != REPLACE_ONE:
        found = [(size, _group_epsilon(merged, delta, size)) for size in sizes]
    elif _mean_loss(merged, 2) > HOPELESS:
        return ()
    else:
        epsilons, deltas = pld_curve(merged, 2049, LEAST_DELTA, relation)
        found = [(size, _by_lemma(epsilons, deltas, delta, size)) for size in sizes]
    return tuple((size, epsilon) for size, epsilon in found if math.isfinite(epsilon))


def curve_of(spends: Sequence[Spend], relation: str) -> tuple[tuple[float, float], ...]:
    """δ(ε) from ε = 0 to where δ is ``LEAST``: upper bounds, in the order of ε."""
    merged = merge(in_range(spend) for spend in spends)
    if not _computable(merged) or _mean_loss(merged, 2 if relation == REPLACE_ONE else 1) > HOPELESS:
        return ()
    epsilons, deltas = pld_curve(merged, POINTS, LEAST, relation, power=1.5)
    return tuple((float(e), float(d)) for e, d in zip(epsilons, deltas, strict=True))


def gaussian_mu(curve: Sequence[tuple[float, float]]) -> float | None:
    """A μ for which Gaussian DP promises no more than ``curve`` does, from ε = 0 to its end; None without a curve.

    δ falls as ε grows, on the curve and in Gaussian DP. So between two points it is enough that Gaussian DP has, at
    the second, the δ of the first: that holds for every ε between them, and costs less than a hundredth of μ.
    """
    if len(curve) < 2:
        return None
    mu = 0.0
    for (_, delta), (later, _) in itertools.pairwise(curve):
        if gaussian_delta(mu, later) < delta:
            mu = max(mu, _mu_at(later, delta))
    return mu


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-Gaussian DP."""
    if mu == 0:
        return 0.0
    tail = math.exp(epsilon + float(scipy.special.log_ndtr(-epsilon / mu - mu / 2)))
    return float(scipy.special.ndtr(-epsilon / mu + mu / 2)) - tail


def _mu_at(epsilon: float, delta: float) -> float:
    if delta <= gaussian_delta(1e-9, epsilon):
        return 0.0
    return float(
        scipy.optimize.brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, 100.0, xtol=1e-10)
    )


def _computable(spends: Sequence[Spend]) -> bool:
    return (
        bool(spends)
        and all(spend.noise_multiplier >= LEAST_NOISE for spend in spends)
        and sum(spend.steps for spend in spends) <= MOST_STEPS
    )


def _by_lemma(epsilons: Floats, deltas: Floats, delta: float, size: int) -> float:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        grown = deltas * np.where(epsilons > 0, np.expm1(size * epsilons) / np.expm1(epsilons), size)
    fits = np.flatnonzero(grown <= delta)
    return float(size * epsilons[fits[0]]) if fits.size else math.inf


@dataclass(frozen=True)
class _Group:
    """What a step shows of ``size`` units that are drawn with this rate: P = Σ wⱼ N(j, s²) against Q = N(0, s²)."""

    rate: float
    noise: float
    size: int

    @property
    def log_weights(self) -> Floats:
        """Of 0 … size units drawn."""
        if self.rate == 1:
            return np.where(np.arange(self.size + 1) == self.size, 0.0, -np.inf)
        j = np.arange(self.size + 1, dtype=np.float64)
        choose = (
            scipy.special.gammaln(self.size + 1)
            - scipy.special.gammaln(j + 1)
            - scipy.special.gammaln(self.size - j + 1)
        )
        return np.asarray(choose + j * math.log(self.rate) + (self.size - j) * math.log1p(-self.rate))

    def loss(self, x: Floats) -> tuple[Floats, Floats]:
        """log(P/Q) at x, which grows with x, and its derivative."""
        j = np.arange(self.size + 1, dtype=np.float64)
        terms = self.log_weights + (2 * x[:, None] * j - j * j) / (2 * self.noise**2)
        total = scipy.special.logsumexp(terms, axis=1)
        share = np.exp(terms - total[:, None])
        return np.asarray(total), share @ j / self.noise**2

    def where(self, losses: Floats, reach: float) -> Floats:
        """x at which the loss is each given value: from a table, then by two steps of Newton's method."""
        table = np.linspace(-reach, self.size + reach, _TABLE)
        known, _ = self.loss(table)
        x = np.interp(losses, known, table)
        inside = (losses > known[0]) & (losses < known[-1])
        for _ in range(2):
            value, slope = self.loss(x)
            x = np.where(inside & (slope > 0), x - (value - losses) / np.maximum(slope, 1e-300), x)
        return np.where(losses <= known[0], -np.inf, np.clip(x, -reach, self.size + reach))

    def above(self, x: Floats) -> Floats:
        """P(more than x)."""
        j = np.arange(self.size + 1, dtype=np.float64)
        return np.asarray(scipy.special.ndtr((j - x[:, None]) / self.noise) @ np.exp(self.log_weights))

    def mean_loss(self) -> float:
        """E[log(P/Q)] under P."""
        z = np.linspace(-8.0, 8.0, 801)
        weights = np.exp(-0.5 * z * z)
        weights /= weights.sum()
        shares = np.exp(self.log_weights)
        return float(
            sum(
                share * (weights @ self.loss(j + self.noise * z)[0])
                for j, share in enumerate(shares)
                if share > 0
            )
        )


def _mean_loss(spends: Sequence[Spend], size: int) -> float:
    return sum(s.steps * _Group(s.sampling_rate, s.noise_multiplier, size).mean_loss() for s in spends)


@lru_cache(maxsize=256)  # a resumed run certifies the same releases again
def _group_epsilon(spends: tuple[Spend, ...], delta: float, size: int) -> float:
    mean = _mean_loss(spends, size)
    if not mean < HOPELESS:
        return math.inf
    steps = sum(spend.steps for spend in spends)
    log_truncation = math.log(1e-5 * delta / steps)
    groups = [(_Group(s.sampling_rate, s.noise_multiplier, size), s.steps) for s in spends]
    ends = [_reach(group, log_truncation) for group, _ in groups]
    # The mean loss is about half of its variance where losses are small; either way this only steers the grid.
    width = min(0.05, math.sqrt(12e-3 * max(2 * mean / steps, 1e-12)))
    width = max(width, *(high / _MOST_POINTS for _, high in ends))
    width = 2.0 ** math.floor(math.log2(width))
    parts = [(_discretised(group, width, log_truncation), count) for group, count in groups]
    first, *others = (one.times(count) for one, count in parts)
    total = reduce(LossDistribution.and_then, others, first)
    if total.added > ROUNDED * delta:
        return min(total.epsilon_at(delta), composed_precisely(parts, delta).epsilon_at(delta))
    return total.epsilon_at(delta)


def _reach(group: _Group, log_truncation: float) -> tuple[float, float]:
    """How far x reaches beyond its centres, and the largest loss there."""
    reach = math.sqrt(-2 * log_truncation) * group.noise
    return reach, float(group.loss(np.array([group.size + reach]))[0][0])


def _discretised(group: _Group, width: float, log_truncation: float) -> LossDistribution:
    """Both directions on a grid, rounded so that they dominate; the tail counts as disclosure."""
    reach, high = _reach(group, log_truncation)
    low = float(group.loss(np.array([-reach]))[0][0])
    removing = np.arange(math.floor(low / width), math.ceil(high / width) + 1)
    epsilons = removing.astype(np.float64) * width
    x = group.where(epsilons, reach)
    deltas = group.above(x) - np.exp(epsilons) * scipy.special.ndtr(-x / group.noise)
    remove = connect_the_dots(width, int(removing[0]), deltas)
    adding = np.arange(math.floor(-high / width), math.ceil(-low / width) + 1)
    epsilons = adding.astype(np.float64) * width
    x = group.where(-epsilons, reach)
    deltas = scipy.special.ndtr(x / group.noise) - np.exp(epsilons) * (1 - group.above(x))
    return LossDistribution((remove, connect_the_dots(width, int(adding[0]), deltas)))
