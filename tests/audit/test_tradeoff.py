"""Trade-off functions are those of the mechanisms they are made for, and never above them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from tacit.audit import Claim, Tradeoff
from tacit.plan import Spend, epsilon_of

ALARMS = np.linspace(1e-4, 0.9999, 57)


def gaussian(alarms: float, noise: float) -> float:
    return float(norm.cdf(norm.ppf(1 - alarms) - 1 / noise))


@pytest.mark.parametrize("noise", [0.4, 1.0, 3.7, 30.0])
def test_one_gaussian_release(noise: float) -> None:
    curve = Claim((Spend(1.0, noise, 1),), 1e-5).tradeoff()
    for alarms in ALARMS:
        exact = gaussian(alarms, noise)
        assert exact - 1.5e-3 <= curve(alarms) <= exact + 1e-6


def test_composition_of_gaussians_is_a_gaussian() -> None:
    curve = Claim((Spend(1.0, 2.0, 3), Spend(1.0, 4.0, 5)), 1e-5).tradeoff()
    noise = (3 / 4 + 5 / 16) ** -0.5
    for alarms in ALARMS:
        assert curve(alarms) == pytest.approx(gaussian(alarms, noise), abs=2e-3)


def test_no_test_of_a_sampled_gaussian_beats_its_curve() -> None:
    rate, noise = 0.2, 0.8
    curve = Claim((Spend(rate, noise, 1),), 1e-5).tradeoff()
    for threshold in np.linspace(-3, 4, 29):
        alarms = norm.sf(threshold / noise)
        hits = (1 - rate) * alarms + rate * norm.sf((threshold - 1) / noise)
        # Either data set may be the one that is called the usual one.
        assert curve(alarms) <= 1 - hits + 1e-9
        assert curve(1 - hits) <= alarms + 1e-9
    assert curve(0.3) < 0.7 - 0.01


def test_curves_fall_are_convex_and_symmetric() -> None:
    curve = Claim((Spend(0.1, 1.0, 50),), 1e-5).tradeoff()
    values = np.array([curve(a) for a in np.linspace(0, 1, 201)])
    assert (np.diff(values) <= 1e-12).all()
    assert (np.diff(values, 2) >= -1e-12).all()
    for alarms in ALARMS:
        assert curve(curve(alarms)) == pytest.approx(alarms, abs=2e-3)
        assert curve.least_alarms(1 - curve(alarms)) == pytest.approx(alarms, abs=2e-3)


def test_the_envelope_is_the_maximum_of_its_lines() -> None:
    epsilons = np.linspace(0, 4, 9)
    deltas = np.array([norm.cdf(-e + 0.5) - np.exp(e) * norm.cdf(-e - 0.5) for e in epsilons])
    curve = Tradeoff(epsilons, deltas)
    for alarms in ALARMS:
        lines = np.concatenate(
            [1 - deltas - np.exp(epsilons) * alarms, np.exp(-epsilons) * (1 - deltas - alarms)]
        )
        assert curve(alarms) == pytest.approx(max(0.0, lines.max()), abs=1e-12)


def test_a_claim_with_less_noise_is_a_weaker_claim() -> None:
    claim = Claim((Spend(0.1, 1.0, 50), Spend(0.1, 2.0, 20)), 1e-5)
    assert claim.epsilon() == epsilon_of(claim.spends, 1e-5)
    assert claim.epsilon(2 / 3) == epsilon_of((Spend(0.1, 2 / 3, 50), Spend(0.1, 4 / 3, 20)), 1e-5)
    assert claim.tradeoff(2 / 3)(0.1) < claim.tradeoff()(0.1) < claim.tradeoff(1.5)(0.1)
