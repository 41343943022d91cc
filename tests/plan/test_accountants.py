"""Accounting against closed forms, against itself and against Opacus."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from tacit.errors import ArgumentError
from tacit.plan import ACCOUNTANTS, Spend, epsilon_of, merge
from tacit.plan.accountants import ORDERS, renyi_divergences


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang (2018): the exact epsilon of a Gaussian mechanism with sensitivity / deviation mu."""

    def excess(epsilon: float) -> float:
        first = norm.cdf(mu / 2 - epsilon / mu)
        second = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(first - second - delta)

    return float(brentq(excess, 0, 100))


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (30.0, 100), (300.0, 10_000), (2.0, 3)])
@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_pld_matches_the_plain_gaussian_without_sampling(noise: float, steps: int, delta: float) -> None:
    exact = gaussian_epsilon(math.sqrt(steps) / noise, delta)
    bound = epsilon_of([Spend(1.0, noise, steps)], delta)
    assert exact <= bound * (1 + 1e-6)
    assert bound <= exact * 1.002


def test_pld_covers_removing_as_well_as_adding() -> None:
    # The loss of adding an example never exceeds -log(1 - q); that of removing one has no bound.
    rate, noise, delta = 0.2, 0.7, 1e-5
    adding_only = -math.log1p(-rate)
    assert epsilon_of([Spend(rate, noise, 1)], delta) > 3 * adding_only


def remove_direction_delta(rate: float, noise: float, epsilon: float) -> float:
    """E_P[(1 - exp(epsilon - loss))+] for one step, by quadrature."""
    total, width = 0.0, 1e-4
    for index in range(-70_000, 80_000):
        x = index * width
        q = math.exp(-0.5 * (x / noise) ** 2)
        p = (1 - rate) * q + rate * math.exp(-0.5 * ((x - 1) / noise) ** 2)
        total += max(0.0, p - math.exp(epsilon) * q) * width
    return total / (noise * math.sqrt(2 * math.pi))


def test_pld_matches_quadrature_for_one_subsampled_step() -> None:
    delta = remove_direction_delta(0.1, 0.9, 1.0)
    assert epsilon_of([Spend(0.1, 0.9, 1)], delta) == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_composing_n_times_equals_counting_n(accountant: str) -> None:
    one_by_one = [Spend(0.02, 1.1, 1)] * 40 + [Spend(0.02, 0.8, 1)] * 10
    counted = [Spend(0.02, 0.8, 10), Spend(0.02, 1.1, 40)]
    assert epsilon_of(one_by_one, 1e-5, accountant) == epsilon_of(counted, 1e-5, accountant)


def test_merge_adds_steps_and_sorts() -> None:
    spends = [Spend(0.2, 2.0, 1), Spend(0.1, 3.0, 2), Spend(0.2, 2.0, 4)]
    assert merge(spends) == (Spend(0.1, 3.0, 2), Spend(0.2, 2.0, 5))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_composition_costs_more_than_each_part(accountant: str) -> None:
    first, second = Spend(0.02, 1.0, 300), Spend(0.02, 1.2, 700)
    both = epsilon_of([first, second], 1e-5, accountant)
    assert both > 1.1 * max(epsilon_of([part], 1e-5, accountant) for part in (first, second))


def test_the_accountants_are_ordered_by_tightness() -> None:
    spends = [Spend(0.02, 1.95, 450), Spend(0.02, 1.21, 1050)]
    pld, rdp, paper = (epsilon_of(spends, 1e-5, name) for name in ("pld", "rdp", "theorem-4.1"))
    assert pld < 0.95 * rdp < 0.95 * paper


def test_theorem_4_1_is_the_printed_formula() -> None:
    # Whole order a, by direct summation of the binomial expansion of A_a in Mironov et al. (2019).
    rate, noise, steps, delta = 0.05, 1.3, (20, 70), 1e-6

    def divergence(order: int, noise: float) -> float:
        terms = (
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * noise**2))
            for k in range(order + 1)
        )
        return math.log(sum(terms)) / (order - 1)

    spends = [Spend(rate, noise, steps[0]), Spend(rate, 1.7, steps[1])]
    printed = min(
        steps[0] * divergence(order, noise)
        + steps[1] * divergence(order, 1.7)
        + math.log(1 / delta) / (order - 1)
        for order in range(2, 30)
    )
    assert epsilon_of(spends, delta, "theorem-4.1") == pytest.approx(printed, rel=2e-3)
    assert epsilon_of(spends, delta, "theorem-4.1") <= printed


def test_renyi_by_quadrature_and_by_binomials_agree() -> None:
    # Fractional orders next to a whole one bracket it: the divergence grows with the order.
    values = dict(zip(ORDERS, renyi_divergences([Spend(0.1, 0.8, 1)]), strict=True))
    for order in (2.0, 3.0, 7.0):
        neighbours = (values[round(order - 0.1, 1)] + values[round(order + 0.1, 1)]) / 2
        assert values[order] == pytest.approx(neighbours, rel=2e-2)
        assert values[round(order - 0.1, 1)] < values[order] < values[round(order + 0.1, 1)]


def test_renyi_agrees_with_dp_accounting() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    events = pytest.importorskip("dp_accounting")
    accountant = rdp.RdpAccountant(orders=ORDERS)
    accountant.compose(events.PoissonSampledDpEvent(0.03, events.GaussianDpEvent(0.7)), 11)
    ours, theirs = renyi_divergences([Spend(0.03, 0.7, 11)]), accountant._rdp
    whole = np.asarray(ORDERS) == np.round(ORDERS)
    assert ours[whole] == pytest.approx(theirs[whole], rel=1e-9)
    # For fractional orders it sums absolute values of an alternating series: an upper bound, or infinity.
    assert np.all(ours <= theirs * (1 + 1e-9))


@pytest.mark.parametrize("order", [1.1, 1.9, 4.7, 9.3])
def test_fractional_orders_match_quadrature(order: float) -> None:
    rate, noise = 0.03, 0.7

    def integrand(x: float) -> float:
        ratio = (1 - rate) + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return float(norm.pdf(x, scale=noise)) * ratio**order

    moment = sum(quad(integrand, low, low + 1, epsabs=0, epsrel=1e-12)[0] for low in range(-9, 20))
    values = dict(zip(ORDERS, renyi_divergences([Spend(rate, noise, 1)]), strict=True))
    assert values[order] == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


PRV_CASES = [
    [Spend(0.02, 1.95, 450), Spend(0.02, 1.21, 1050)],
    [Spend(0.3, 13.26, 1000)],
    [Spend(0.001, 0.3846, 1000)],
    [Spend(0.001, 0.752, 100_000)],
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spends", PRV_CASES)
def test_pld_is_within_one_percent_of_the_prv_accountant_of_opacus(spends: list[Spend]) -> None:
    accountants = pytest.importorskip("opacus.accountants")
    prv = accountants.PRVAccountant()
    prv.history = [(spend.noise_multiplier, spend.sampling_rate, spend.steps) for spend in spends]
    error = 0.01
    peer = prv.get_epsilon(delta=1e-5, eps_error=error, delta_error=1e-8) - error
    assert epsilon_of(spends, 1e-5) == pytest.approx(peer, rel=0.01)


def test_no_spend_costs_nothing_and_no_noise_costs_everything() -> None:
    assert epsilon_of([], 1e-5) == 0
    assert epsilon_of([Spend(0.1, 0.0, 1)], 1e-5) == math.inf


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'pld'"):
        epsilon_of([Spend(0.1, 1.0, 1)], 1e-5, "plb")
    with pytest.raises(ArgumentError, match="delta"):
        epsilon_of([Spend(0.1, 1.0, 1)], 0.0)
    with pytest.raises(ArgumentError, match="sampling_rate"):
        Spend(0.0, 1.0, 1)
