from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from tacit.errors import ArgumentError
from tacit.theory import (
    misranking_bernstein,
    misranking_chebyshev,
    misranking_exact,
    misranking_subgaussian,
)

# (Gp², Gq², T₁, ν²)
CASES = [
    (0.1, 0.0, 10, 1.0),
    (0.1, 0.0, 1000, 1.0),
    (1.0, 0.5, 100, 1.0),
    (1.0, 0.0, 100, 1.0),
    (0.02, 0.01, 40, 0.01),
    (10.0, 5.0, 20, 1.0),
    (100.0, 90.0, 100, 1.0),
    (4.0, 0.0, 2, 0.5),
]


@pytest.mark.parametrize("case", CASES)
def test_exact_probability_matches_simulated_scores(case: tuple[float, float, int, float]) -> None:
    p, q, steps, variance = case
    rng = np.random.default_rng(0)
    runs, wrong = 20_000, 0
    for _ in range(4):
        noise = math.sqrt(variance) * rng.standard_normal((2, runs // 4, steps))
        scores = ((np.sqrt([p, q])[:, None, None] + noise) ** 2 - variance).mean(-1)
        wrong += int((scores[0] < scores[1]).sum())
    exact = misranking_exact(p, q, steps, variance)
    assert wrong / runs == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / runs) + 1 / runs)


@pytest.mark.parametrize(("p", "q"), [(0.01, 0.0), (1.0, 0.0), (4.0, 1.0), (30.0, 1.0), (90.0, 1.0)])
def test_exact_probability_has_a_closed_form_for_one_step(p: float, q: float) -> None:
    # |x| < |y| iff (x + y)(x − y) < 0, and the sum and the difference are independent.
    u, v = (math.sqrt(p) + math.sqrt(q)) / math.sqrt(2), (math.sqrt(p) - math.sqrt(q)) / math.sqrt(2)
    closed = norm.cdf(u) * norm.cdf(-v) + norm.cdf(-u) * norm.cdf(v)
    assert misranking_exact(p, q, 1, 1.0) == pytest.approx(closed, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_bounds_hold(case: tuple[float, float, int, float]) -> None:
    exact = misranking_exact(*case)
    assert exact <= misranking_subgaussian(*case)
    assert misranking_subgaussian(*case) <= misranking_chebyshev(*case)
    assert misranking_subgaussian(*case) <= misranking_bernstein(*case) + 1e-15


def test_chebyshev_is_the_variance_of_the_difference_over_the_squared_gap() -> None:
    p, q, steps, variance = 3.0, 1.0, 50, 0.5
    rng = np.random.default_rng(1)
    noise = math.sqrt(variance) * rng.standard_normal((2, 40_000, steps))
    a = ((np.sqrt([p, q])[:, None, None] + noise) ** 2).mean(-1)
    measured = np.var(a[0] - a[1]) / (p - q) ** 2
    assert misranking_chebyshev(p, q, steps, variance) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("weaker", [0.0, 0.1, 3.0, 100.0])
@pytest.mark.parametrize("gap", [0.01, 0.3, 1.0, 10.0, 1000.0])
def test_an_eighth_is_valid_and_sharp(weaker: float, gap: float) -> None:
    """The exact exponent per step (Cramér) is at least Δ²/8W, and equal to it for a vanishing gap."""
    p, q = weaker + gap, weaker
    lam = np.geomspace(1e-6, 0.5, 200_001)[:-1]
    exponent = 0.5 * np.log1p(-4 * lam**2) + lam * p / (1 + 2 * lam) - lam * q / (1 - 2 * lam)
    claimed = -math.log(misranking_subgaussian(p, q, 1, 1.0))
    assert exponent.max() >= claimed * (1 - 1e-6)
    if gap <= 0.01:
        assert exponent.max() == pytest.approx(claimed, rel=1e-3)


def test_remark_with_constant_one_is_false() -> None:
    assert misranking_bernstein(1.0, 0.5, 100, 1.0, constant=1.0) < misranking_exact(1.0, 0.5, 100, 1.0) / 100


def test_remark_is_looser_than_chebyshev_for_few_steps_and_a_strong_signal() -> None:
    assert misranking_bernstein(100.0, 0.0, 3, 1.0) > misranking_chebyshev(100.0, 0.0, 3, 1.0)


def test_refuses_the_wrong_order() -> None:
    with pytest.raises(ArgumentError, match="larger squared signal"):
        misranking_exact(1.0, 2.0, 10, 1.0)
