"""Other neighbours than one unit more or less, several units at once, and other figures than (ε, δ)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacit.errors import ArgumentError
from tacit.plan import Spend, epsilon_of, make_plan, plan_digest
from tacit.plan.accountants import RELATION, RELATIONS, REPLACE_ONE, ZERO_OUT, pld_curve
from tacit.plan.relations import curve_of, gaussian_delta, gaussian_mu, group_epsilons
from tacit.runs.recounting import TOLERANCE, recount, recount_delta

CASES = [
    [Spend(0.0625, 2.09, 400)],
    [Spend(0.01, 0.9, 1000)],
    [Spend(0.3, 4.0, 50), Spend(0.3, 6.0, 20)],
    [Spend(1.0, 8.0, 10)],
]


def counts(spends: list[Spend]) -> dict[tuple[float, float], int]:
    return {(spend.sampling_rate, spend.noise_multiplier): spend.steps for spend in spends}


@pytest.mark.parametrize("noise", [0.8, 2.0, 11.0])
def test_without_sampling_a_replaced_unit_costs_as_half_the_noise(noise: float) -> None:
    replaced = epsilon_of([Spend(1.0, 2 * noise, 7)], 1e-5, relation=REPLACE_ONE)
    assert replaced == pytest.approx(epsilon_of([Spend(1.0, noise, 7)], 1e-5), rel=2e-3)


@pytest.mark.parametrize("spends", CASES)
def test_a_unit_that_counts_for_nothing_costs_what_adding_or_removing_it_does(spends: list[Spend]) -> None:
    assert epsilon_of(spends, 1e-6, relation=ZERO_OUT) == epsilon_of(spends, 1e-6)


@pytest.mark.parametrize("spends", CASES)
def test_two_accountants_agree_on_a_replaced_unit(spends: list[Spend]) -> None:
    found = epsilon_of(spends, 1e-6, relation=REPLACE_ONE)
    independent = recount(counts(spends), 1e-6, replaced=True)
    assert independent <= found * (1 + TOLERANCE)
    assert found <= independent * 1.01
    assert found > 1.4 * epsilon_of(spends, 1e-6)


def test_a_replaced_unit_moves_the_noisy_value_both_ways() -> None:
    """One step by brute force: hockey-stick divergence of the two mixtures on a fine grid."""
    rate, noise, epsilon = 0.3, 1.2, 0.9
    x = np.linspace(-20, 20, 400_001)
    upper = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)
    lower = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, -1, noise)
    delta = float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum() * (x[1] - x[0]))
    found = recount_delta({(rate, noise): 1}, [epsilon], 1e-9, replaced=True)
    assert found == pytest.approx([delta], rel=1e-3)
    assert epsilon_of([Spend(rate, noise, 1)], delta, relation=REPLACE_ONE) == pytest.approx(
        epsilon, rel=2e-3
    )


@pytest.mark.parametrize("size", [2, 5])
def test_several_units_by_brute_force(size: int) -> None:
    rate, noise, epsilon = 0.2, 1.5, 1.1
    x = np.linspace(-30, 40, 700_001)
    weights = binom.pmf(np.arange(size + 1), size, rate)
    upper = sum(w * norm.pdf(x, j, noise) for j, w in enumerate(weights))
    lower = norm.pdf(x, 0, noise)
    both = [
        float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))
        for p, q in ((upper, lower), (lower, upper))
    ]
    found = group_epsilons([Spend(rate, noise, 1)], max(both), RELATION, [size])
    assert found[0][1] == pytest.approx(epsilon, rel=3e-3)
    assert found[0][1] >= epsilon * (1 - 1e-6)


@pytest.mark.parametrize("spends", CASES)
def test_two_accountants_agree_on_groups(spends: list[Spend]) -> None:
    found = dict(group_epsilons(spends, 1e-6, RELATION))
    assert list(found) == [1, 2, 5, 10]
    assert found[1] == pytest.approx(epsilon_of(spends, 1e-6), rel=2e-3)
    for size, epsilon in found.items():
        independent = recount(counts(spends), 1e-6, size=size)
        assert independent <= epsilon * (1 + TOLERANCE)
        assert epsilon <= independent * 1.02
        assert epsilon > size * found[1] * (1 - 1e-9)


def test_without_sampling_several_units_cost_as_a_fraction_of_the_noise() -> None:
    found = dict(group_epsilons([Spend(1.0, 20.0, 5)], 1e-6, RELATION))
    for size, epsilon in found.items():
        assert epsilon == pytest.approx(epsilon_of([Spend(1.0, 20.0 / size, 5)], 1e-6), rel=3e-3)


def test_several_replaced_units_are_bounded_by_group_privacy_or_not_at_all() -> None:
    spends = [Spend(0.0625, 4.0, 400)]
    found = dict(group_epsilons(spends, 1e-6, REPLACE_ONE))
    assert found[1] == pytest.approx(epsilon_of(spends, 1e-6, relation=REPLACE_ONE), rel=2e-3)
    assert found[2] > 2 * found[1]
    assert all(math.isfinite(epsilon) for epsilon in found.values())


def test_mu_of_a_gaussian_mechanism_is_that_of_its_definition() -> None:
    curve = curve_of([Spend(1.0, 6.0, 9)], RELATION)
    assert gaussian_mu(curve) == pytest.approx(3 / 6.0, rel=1e-2)
    assert gaussian_mu(curve) >= 3 / 6.0 * (1 - 1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
def test_mu_covers_the_whole_curve(relation: str) -> None:
    curve = curve_of(CASES[0], relation)
    mu = gaussian_mu(curve)
    assert mu is not None
    # Between the points too: the curve on a grid that has none of them in common.
    finer = zip(*pld_curve(CASES[0], 1000, 1.1e-9, relation), strict=True)
    assert all(gaussian_delta(mu, epsilon) >= delta for epsilon, delta in finer)
    assert any(gaussian_delta(mu * 0.985, epsilon) < delta for epsilon, delta in curve)
    epsilons, deltas = zip(*curve, strict=True)
    assert list(epsilons) == sorted(epsilons)
    assert list(deltas) == sorted(deltas, reverse=True)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_keeps_its_promise_for_its_relation(relation: str) -> None:
    plan = make_plan(
        "tp-topk",
        epsilon=2.0,
        delta=1e-6,
        examples=20_000,
        batch_size=500,
        epochs=5,
        active_ratio=0.2,
        warmup=(0.3, 0.3),
        relation=relation,
    )
    assert 0.99 * 2.0 <= plan.spent() <= 2.0
    assert plan.relation == relation
    assert relation in str(plan)


def test_plans_of_other_relations_differ_and_unknown_ones_are_refused() -> None:
    budget = {"epsilon": 2.0, "delta": 1e-6, "examples": 20_000, "batch_size": 500, "epochs": 2}
    digests = {plan_digest(make_plan("dp-sgd", relation=relation, **budget)) for relation in RELATIONS}
    assert len(digests) == 3
    with pytest.raises(ArgumentError, match="Unknown relation 'replace-two'"):
        make_plan("dp-sgd", relation="replace-two", **budget)
    with pytest.raises(ArgumentError, match="does not account for replace-one; choose pld"):
        make_plan("dp-sgd", relation=REPLACE_ONE, accountant="rdp", **budget)


def test_figures_that_cannot_be_computed_are_not_stated() -> None:
    assert group_epsilons([], 1e-6, RELATION) == ()
    assert group_epsilons([Spend(0.1, 0.0, 5)], 1e-6, RELATION) == ()
    assert curve_of([Spend(1.0, 0.02, 1000)], RELATION) == ()
    assert gaussian_mu(()) is None
