"""The second accountant against closed forms, quadrature and the first one."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import tacit.runs.recounting as module
from tacit.plan import Spend, epsilon_of
from tacit.runs import recount
from tacit.runs.recounting import TOLERANCE, _Direction, recount_delta


def gaussian_epsilon(mu: float, delta: float) -> float:
    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu) - second - delta)

    return float(brentq(excess, 0, 200))


@pytest.mark.parametrize(
    ("noise", "count", "delta"),
    [(1.0, 1, 1e-5), (30.0, 100, 1e-5), (300.0, 10_000, 1e-10), (0.2, 1, 1e-6), (5.0, 3, 1e-7)],
)
def test_without_sampling_it_is_the_plain_gaussian(noise: float, count: int, delta: float) -> None:
    exact = gaussian_epsilon(math.sqrt(count) / noise, delta)
    assert recount({(1.0, noise): count}, delta) == pytest.approx(exact, rel=TOLERANCE)


def test_different_gaussians_compose_to_one() -> None:
    exact = gaussian_epsilon(math.sqrt(10 / 9.0 + 7 / 36.0), 1e-5)
    assert recount({(1.0, 3.0): 10, (1.0, 6.0): 7}, 1e-5) == pytest.approx(exact, rel=TOLERANCE)


@pytest.mark.parametrize("removing", [True, False])
@pytest.mark.parametrize(("rate", "noise"), [(0.02, 1.0), (0.3, 0.6), (0.001, 0.4)])
def test_the_distribution_function_matches_sampling_of_the_loss(
    rate: float, noise: float, removing: bool
) -> None:
    direction = _Direction(rate, noise, removing)
    generator = np.random.default_rng(5)
    x = noise * generator.standard_normal(200_000)
    if removing:
        x += generator.random(x.size) < rate
    losses = direction.loss(x)
    for level in (0.01, 0.3, 0.5, 0.9, 0.99):
        value = np.quantile(losses, level)
        assert direction.sides(np.array([value]))[0][0] == pytest.approx(level, abs=4e-3)
    mean, variance = direction.moments()
    assert mean == pytest.approx(losses.mean(), abs=5 * math.sqrt(variance / x.size))


def one_step_delta(rate: float, noise: float, epsilon: float, removing: bool) -> float:
    """The hockey-stick divergence by a fine sum over x: integral of (p - exp(epsilon) q)+."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 2_000_001)
    alone = norm.pdf(x, scale=noise)
    mixed = (1 - rate) * alone + rate * norm.pdf(x, loc=1, scale=noise)
    upper, lower = (mixed, alone) if removing else (alone, mixed)
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(("rate", "noise", "epsilon"), [(0.1, 0.9, 1.0), (0.4, 0.5, 3.0), (0.6, 1.5, 0.3)])
def test_one_step_covers_both_directions(rate: float, noise: float, epsilon: float) -> None:
    both = [one_step_delta(rate, noise, epsilon, removing) for removing in (True, False)]
    assert recount({(rate, noise): 1}, max(both)) == pytest.approx(epsilon, rel=2e-3)


GRID = [
    {(0.02, 1.0): 1000},
    {(0.02, 1.95): 450, (0.02, 1.21): 1050},
    {(0.001, 1.3663): 100_000},
    {(0.3, 13.26): 1000},
    {(0.001, 0.3846): 1000},
    {(0.001, 9.77): 100_000},
    {(0.3, 2922.0): 100_000},
    {(0.001, 0.73): 10},
    {(0.001, 0.3): 1},
    {(0.5, 20.0): 3, (0.01, 0.8): 100, (1.0, 50.0): 7},
]


@pytest.mark.parametrize("counts", GRID)
def test_both_accountants_agree(counts: dict[tuple[float, float], int]) -> None:
    first = epsilon_of([Spend(rate, noise, count) for (rate, noise), count in counts.items()], 1e-5)
    second = recount(counts, 1e-5)
    assert second <= first * (1 + TOLERANCE)
    assert second >= first * (1 - 1.5e-3)


@pytest.mark.parametrize("least", [1e-3, 1e-5, 1e-12])
def test_delta_is_right_far_from_where_it_was_tilted_to(least: float) -> None:
    """The δ of a curve reach from next to one at ε = 0 down to the least one, all from one distribution."""
    mu, epsilons = math.sqrt(100) / 8.0, (0.0, 0.3, 1.0, 3.0, 6.0)
    found = recount_delta({(1.0, 8.0): 100}, epsilons, least)
    for epsilon, delta in zip(epsilons, found, strict=True):
        exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        assert delta == pytest.approx(exact, rel=5e-3, abs=1e-3 * least)
    rare = recount_delta({(0.01, 0.9): 3_000}, (0.0, 1.0), least)
    assert all(0 < delta < 1 for delta in rare)


def test_more_releases_and_less_noise_cost_more() -> None:
    base = recount({(0.05, 1.0): 100}, 1e-5)
    assert recount({(0.05, 1.0): 101}, 1e-5) > base
    assert recount({(0.05, 0.99): 100}, 1e-5) > base
    assert recount({(0.051, 1.0): 100}, 1e-5) > base
    assert recount({(0.05, 1.0): 100}, 2e-5) < base


def test_the_edges() -> None:
    assert recount({}, 1e-5) == 0
    assert recount({(0.1, 0.0): 1}, 1e-5) == math.inf
    assert recount({(0.001, 1e5): 1}, 1e-5) == 0


def test_it_shares_no_code_with_the_accountant_it_checks() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not {name for name in imported if name and name.startswith(("tacit", "dp_accounting", "opacus"))}
