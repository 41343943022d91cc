"""Distributions of the privacy loss: against dp-accounting, brute force, and the exact curve of one step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tacit.plan.accountants import (
    ORDERS,
    REPLACE_ONE,
    Spend,
    _loss_variance,
    epsilon_of,
    pld_epsilon,
    renyi_divergences,
)
from tacit.plan.loss_distribution import (
    LossDistribution,
    Losses,
    composed_precisely,
    connect_the_dots,
    gaussian_losses,
)
from tacit.runs.recounting import recount

# Sampling rate, noise, steps, grid width: rare and frequent sampling, little and much noise, none and many steps.
CASES = [
    (0.02, 1.1, 300, 2.0**-8),
    (0.3, 3.0, 1, 2.0**-9),
    (1.0, 2.0, 7, 2.0**-8),
    (1e-4, 0.7, 500, 2.0**-7),
    (0.001, 30.0, 100, 2.0**-16),
    (0.9, 0.5, 3, 2.0**-7),
]


def reference(rate: float, noise: float, width: float, log_truncation: float, replaced: bool) -> Any:
    accounting = pytest.importorskip("dp_accounting")
    relations = accounting.NeighboringRelation
    return accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=width,
        log_mass_truncation_bound=log_truncation,
        neighboring_relation=relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE,
    )


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("rate", "noise", "steps", "width"), CASES)
def test_it_agrees_with_dp_accounting(
    rate: float, noise: float, steps: int, width: float, replaced: bool
) -> None:
    one = gaussian_losses(rate, noise, width, -40.0, replaced)
    ours = one.times(steps)
    theirs = reference(rate, noise, width, -40.0, replaced).self_compose(steps)
    for delta in (1e-5, 1e-8):
        expected = theirs.get_epsilon_for_delta(delta)
        assert composed_precisely([(one, steps)], delta).epsilon_at(delta) == pytest.approx(
            expected, rel=1e-5
        )
        assert expected * (1 - 1e-5) <= ours.epsilon_at(delta) <= expected * (1 + 1e-3)
    epsilons = np.linspace(0.0, theirs.get_epsilon_for_delta(1e-8), 50)
    expected = np.asarray(theirs.get_delta_for_epsilon(epsilons.tolist()))
    assert ours.delta_at(epsilons) == pytest.approx(expected, rel=1e-5, abs=1e-13 + ours.added)
    assert ours.added < 2e-13 * max(10, steps)


@pytest.mark.parametrize("replaced", [False, True])
def test_composing_different_steps_agrees_with_dp_accounting(replaced: bool) -> None:
    parts = [(0.02, 1.1, 100), (1.0, 20.0, 3), (0.1, 4.0, 50)]
    ours, theirs = None, None
    for rate, noise, steps in parts:
        one = gaussian_losses(rate, noise, 2.0**-8, -40.0, replaced).times(steps)
        other = reference(rate, noise, 2.0**-8, -40.0, replaced).self_compose(steps)
        ours = one if ours is None else ours.and_then(one)
        theirs = other if theirs is None else theirs.compose(other)
    assert ours is not None
    assert ours.epsilon_at(1e-6) == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-5)


def true_delta(way: str, epsilon: float, rate: float, noise: float) -> float:
    """The divergence of one step, by quadrature."""
    x = np.linspace(-14 * noise - 1, 14 * noise + 1, 400_001)
    absent = norm.pdf(x, scale=noise)

    def there(centre: int) -> Any:
        return (1 - rate) * absent + rate * norm.pdf(x, centre, noise)

    first, second = {
        "remove": (there(1), absent),
        "add": (absent, there(1)),
        "replace": (there(1), there(-1)),
    }[way]
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize("replaced", [False, True])
def test_one_step_is_exact_on_the_grid_and_above_the_truth_between(replaced: bool) -> None:
    rate, noise, width = 0.1, 0.8, 2.0**-3
    found = gaussian_losses(rate, noise, width, -40.0, replaced)
    ways = ("replace",) if replaced else ("remove", "add")
    for losses, way in zip(found.directions, ways, strict=True):
        for place in range(6):
            on, off = place * width, (place + 0.5) * width
            exact = true_delta(way, on, rate, noise)
            assert losses.delta_at(np.array([on]))[0] == pytest.approx(exact, rel=1e-6, abs=1e-12)
            between = true_delta(way, off, rate, noise)
            assert losses.delta_at(np.array([off]))[0] >= between - 1e-12
            if between > 1e-6:
                assert losses.delta_at(np.array([off]))[0] > between


def test_convolutions_are_those_by_hand() -> None:
    masses = np.array([0.1, 0.0, 0.5, 0.3])
    one = Losses(0.25, -1, masses, 0.1)
    by_hand = np.convolve(np.convolve(masses, masses), masses)
    three = one.times(3)
    places = np.arange(-3, 7)
    found = {three.first + at: mass for at, mass in enumerate(three.masses)}
    assert [found.get(place, 0.0) for place in places] == pytest.approx(by_hand.tolist(), abs=1e-14)
    assert three.infinite == pytest.approx(1 - 0.9**3)
    assert three.infinite >= 1 - 0.9**3
    twice = one.and_then(one)
    assert twice.first == -2
    assert twice.masses == pytest.approx(np.convolve(masses, masses), abs=1e-14)
    assert twice.infinite == pytest.approx(1 - 0.9**2)


def test_what_a_convolution_cuts_off_counts_as_disclosed() -> None:
    wide = connect_the_dots(0.01, -5000, np.linspace(1.0, 0.0, 10_001))
    composed = wide.times(1000)
    assert composed.masses.size < 1000 * 10_000
    assert composed.masses.sum() + composed.infinite >= 1 - 1e-12
    assert composed.infinite >= 1e-15


@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("noise", [0.4, 0.7, 3.0])
def test_rare_large_losses_do_not_fill_the_memory(rate: float, noise: float) -> None:
    """A million steps of rare sampling: most losses are next to nothing, a few are large."""
    spend = Spend(rate, noise, 10**6)
    width = 2.0 ** math.floor(math.log2(math.sqrt(12e-3 * _loss_variance(rate, noise))))
    one = gaussian_losses(rate, noise, max(width, 2.0**-10), -55.0)
    assert all(losses.times(spend.steps).masses.size < 2**22 for losses in one.directions)


def test_a_million_steps_are_recounted() -> None:
    spend = Spend(1e-4, 0.834, 10**6)
    recounted = recount({(spend.sampling_rate, spend.noise_multiplier): spend.steps}, 1e-9)
    assert recounted <= epsilon_of([spend], 1e-9) <= 1.005 * recounted


def test_epsilon_and_delta_belong_together() -> None:
    losses = gaussian_losses(0.05, 0.9, 2.0**-8, -40.0).times(200)
    for delta in (1e-3, 1e-5, 1e-9):
        epsilon = losses.epsilon_at(delta)
        assert losses.delta_at(np.array([epsilon]))[0] <= delta * (1 + 1e-6)
        assert losses.delta_at(np.array([epsilon - 1e-6]))[0] > delta * (1 - 1e-6)
    assert losses.epsilon_at(1.0) == 0.0


def test_large_losses_are_not_lost_to_overflow() -> None:
    """e^loss is no number above 709; the δ of such losses must still be found."""
    masses = np.array([0.5, 0.3, 0.2])
    losses = Losses(500.0, 1, masses, 0.0)  # 500, 1000, 1500
    assert losses.epsilon_at(1e-6) == pytest.approx(1500.0, abs=1e-3)
    assert losses.epsilon_at(0.2) == pytest.approx(1000.0, abs=1e-3)
    deltas = losses.delta_at(np.array([0.0, 499.0, 700.0, 1200.0, 1499.0, 1600.0]))
    assert deltas == pytest.approx([1.0, 1 - 0.5 * math.exp(-1), 0.5, 0.2, 0.2 * (1 - math.exp(-1)), 0.0])
    assert LossDistribution((losses,)).epsilon_at(1e-6) == losses.epsilon_at(1e-6)


def test_certain_disclosure_has_no_epsilon() -> None:
    assert Losses(0.1, 0, np.array([0.9]), 0.1).epsilon_at(0.05) == math.inf
    assert Losses(0.1, 0, np.array([0.9]), 0.1).epsilon_at(0.1) == 0.0


def test_a_curve_that_rounding_bent_upwards_is_straightened_upwards() -> None:
    deltas = np.array([0.5, 0.3, 0.3 + 1e-13, 0.1, 0.0])
    found = connect_the_dots(0.5, 0, deltas)
    assert np.all(found.masses >= 0)
    assert np.all(found.delta_at(np.arange(5) * 0.5) >= deltas - 1e-15)


def test_the_conversion_of_renyi_divergences_is_that_of_dp_accounting() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    for spend in (Spend(0.01, 1.0, 500), Spend(1.0, 5.0, 2), Spend(0.5, 0.5, 40), Spend(1e-6, 3.0, 1)):
        for delta in (1e-2, 1e-5, 1e-9):
            expected, _ = rdp.compute_epsilon(ORDERS, renyi_divergences([spend]), delta)
            assert epsilon_of([spend], delta, "rdp") == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_replacing_costs_more_than_adding() -> None:
    spends = [Spend(0.1, 2.0, 20)]
    assert pld_epsilon(spends, 1e-5, relation=REPLACE_ONE) > 1.5 * pld_epsilon(spends, 1e-5)
