"""Which runs fit under one promise: the filter against known composition, and its edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tacit.errors import ArgumentError
from tacit.plan import make_plan
from tacit.plan.accountants import Spend, epsilon_of
from tacit.plan.budgets import ASIDE_SHARE, Cost, Filter, pure_divergence, together

SMALL = Cost((Spend(0.05, 2.0, 200),))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of a Gaussian mechanism of sensitivity mu at ε, exactly (Balle and Wang, 2018)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def how_many(budget: Filter, cost: Cost) -> int:
    for count in range(2_000):
        if not budget.admits([cost] * (count + 1), cost):
            return count
    raise AssertionError("the budget has no end")


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (3, 1e-6), (8, 1e-9)])
@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
def test_what_the_filter_lets_in_keeps_the_promise_exactly(
    epsilon: float, delta: float, noise: float
) -> None:
    budget = Filter(epsilon, delta)
    count = how_many(budget, Cost((Spend(1.0, noise, 1),)))
    if count:
        assert gaussian_delta(math.sqrt(count) / noise, epsilon) <= delta


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_the_filter_wastes_little_of_the_budget(epsilon: float) -> None:
    """Against composition of privacy loss distributions, which would hold had all runs been decided beforehand."""
    budget = Filter(epsilon, 1e-6)
    short = Cost((Spend(0.05, 2.0, 10),))
    costs = [short] * how_many(budget, short)
    assert len(costs) > 3
    assert 0.8 * epsilon < budget.epsilon_beforehand(costs) <= epsilon


def test_costs_add_up_over_runs() -> None:
    budget = Filter(4, 1e-6)
    one, other = Cost((Spend(0.1, 3.0, 100),)), Cost((Spend(0.02, 1.5, 300),))
    both = budget.used([one, other])
    assert both == pytest.approx(budget.used([one]) + budget.used([other]))
    assert both == pytest.approx(budget.used([together([one, other])]))
    assert budget.used([]) == 0


def test_the_first_run_may_use_all_of_the_budget_and_then_nothing_else_fits() -> None:
    plan = make_plan("dp-sgd", epsilon=4, delta=1e-6, examples=2000, batch_size=200, epochs=10)
    whole = Cost(plan.spends())
    budget = Filter(4, 1e-6)
    assert budget.used([whole]) > 1  # by the filter alone it would not have fitted
    assert budget.admits([whole], whole)
    tiny = Cost((Spend(0.001, 50.0, 1),))
    assert not budget.admits([whole, tiny], whole)
    # What a first run was let in with counts, even if it was stopped early.
    assert not budget.admits([SMALL, tiny], whole)
    more = make_plan("dp-sgd", epsilon=4.1, delta=1e-6, examples=2000, batch_size=200, epochs=10)
    assert not budget.admits([Cost(more.spends())], Cost(more.spends()))


def test_a_run_without_noise_costs_more_than_any_budget() -> None:
    free = Cost((Spend(0.1, 0.0, 1),))
    assert math.isinf(Filter(1e6, 0.5).used([free]))
    assert not Filter(1e6, 0.5).admits([free], free)


def test_a_delta_that_runs_set_aside_adds_up_to_a_tenth_of_the_budget() -> None:
    budget = Filter(3, 1e-6)
    cost = Cost((Spend(0.01, 10.0, 1),), ASIDE_SHARE * 1e-6 / 2)
    assert how_many(budget, cost) == 2
    assert budget.epsilon_beforehand([cost]) >= epsilon_of(cost.spends, 1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-6), (math.inf, 1e-6), (1, 0), (1, 1), (1, 1e-12)])
def test_a_budget_needs_figures_that_can_be_kept(epsilon: float, delta: float) -> None:
    with pytest.raises(ArgumentError):
        Filter(epsilon, delta)


def test_a_budget_too_small_for_its_delta_lets_nothing_in_by_the_filter() -> None:
    """Where no order leaves room, the divergence that is allowed is not positive."""
    budget = Filter(1e-4, 1e-9)
    cost = Cost((Spend(1e-3, 1000.0, 1),))
    assert budget.used([cost]) > 0
    assert not budget.admits([SMALL, SMALL], SMALL)


def coin_and_gaussian_delta(pure: Sequence[float], mu: float, epsilon: float) -> float:
    """δ at ε of coins with chances e^e : 1 and one Gaussian mechanism of sensitivity mu, exactly: over all coins."""
    total = 0.0
    for sides in itertools.product((1, -1), repeat=len(pure)):
        loss = math.fsum(side * e for side, e in zip(sides, pure, strict=True))
        chance = math.prod(1 / (1 + math.exp(-side * e)) for side, e in zip(sides, pure, strict=True))
        left = epsilon - loss
        total += chance * (gaussian_delta(mu, left) if mu else max(0.0, -math.expm1(left)))
    return total


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2, 1e-6), (8, 1e-9)])
@pytest.mark.parametrize("part", [0.03, 0.2, 0.6])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7])
def test_pure_runs_and_gaussian_runs_together_keep_the_promise_exactly(
    epsilon: float, delta: float, part: float, share: float
) -> None:
    """``share`` is what a Gaussian run takes of the budget, ``part`` what each pure run takes of its ε."""
    budget = Filter(epsilon, delta)
    pure = Cost(pure=(part * epsilon,))
    noise = math.sqrt(budget.used([Cost((Spend(1.0, 1.0, 1),))]) / share) if share else math.inf
    others = [Cost((Spend(1.0, noise, 1),))] if share else []
    count = 0
    while count < 12 and budget.admits([*others, *[pure] * (count + 1)], (others or [pure])[0]):
        count += 1
    if not others:
        assert count == min(12, math.floor(1 / part))  # they just add up
    assert coin_and_gaussian_delta([part * epsilon] * count, 1 / noise if share else 0.0, epsilon) <= delta


def test_the_divergence_of_a_pure_run_is_that_of_the_worst_pair() -> None:
    """Against the definition, for the coin and for random pairs of laws whose ratios are at most e^ε."""
    draw = np.random.default_rng(1)
    for epsilon, order in itertools.product((1e-9, 1e-4, 0.3, 2.0, 12.0, 80.0), (1.05, 2.0, 7.5, 64.0)):
        bound = pure_divergence(epsilon, order)
        chance = 1 / (1 + math.exp(-epsilon))
        if 1e-4 <= epsilon < 13 and order * epsilon < 600:
            coin = math.log(
                chance**order * (1 - chance) ** (1 - order) + (1 - chance) ** order * chance ** (1 - order)
            ) / (order - 1)
            assert bound == pytest.approx(coin, rel=1e-6)
        assert bound == pytest.approx(order * epsilon**2 / 2, rel=1e-3) or epsilon > 1e-4
        assert 0 < bound <= epsilon
        for _ in range(20):
            p = draw.dirichlet(np.ones(6))
            # q p^-1 anywhere within the ratios that sum to one
            q = p * np.exp(draw.uniform(-epsilon / 2, epsilon / 2, 6))
            q /= q.sum()
            with np.errstate(over="ignore"):
                found = np.log(np.sum(p * np.exp((order - 1) * np.log(p / q)))) / (order - 1)
            assert found <= bound + 1e-12 or not np.isfinite(found)


def test_pure_runs_are_counted_in_full_and_refused_beyond_the_budget() -> None:
    budget = Filter(2, 1e-6)
    whole, half, tiny = Cost(pure=(2.0,)), Cost(pure=(1.0,)), Cost(pure=(1e-6,))
    assert budget.admits([whole], whole)
    assert budget.used([whole]) == 1
    assert not budget.admits([whole, tiny], whole)
    assert not budget.admits([Cost(pure=(2.001,))], Cost(pure=(2.001,)))
    assert budget.admits([half, half], half)
    assert not budget.admits([half, half, SMALL], half)  # with another kind the filter must hold
    assert budget.epsilon_beforehand([half, SMALL]) == pytest.approx(1 + budget.epsilon_beforehand([SMALL]))
    assert together([half, whole, tiny]).pure == (2.0, 1.0, 1e-6)


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, 1e12, True, "1"])
def test_a_pure_epsilon_is_a_number_that_promises_something(epsilon: Any) -> None:
    with pytest.raises(ArgumentError):
        Cost(pure=(epsilon,))
