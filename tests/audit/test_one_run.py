"""One-run bounds: the formulas against exact laws, linear programs and simulated mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from tacit.audit import Claim, Guesses, Tradeoff, lower_epsilon, lower_scale
from tacit.audit.bounds import chance_under_dp, chance_under_tradeoff, is_impossible
from tacit.errors import ArgumentError
from tacit.plan import Spend


def test_randomised_response_is_bounded_by_its_exact_law() -> None:
    """With δ = 0 the bound is attained: every guess is right with probability e^ε / (1 + e^ε)."""
    for epsilon in (0.0, 0.7, 2.0):
        for right in range(1, 13):
            exact = binom.sf(right - 1, 12, 1 / (1 + math.exp(-epsilon)))
            assert chance_under_dp(Guesses(40, 12, right), epsilon, 0.0) == pytest.approx(exact, rel=1e-9)


def test_the_delta_term_by_hand() -> None:
    """m = 3, r = 2, v = 2 and ε = 0: ¼ + 6δ · max(½, ¾ / 2)."""
    assert chance_under_dp(Guesses(3, 2, 2), 0.0, 0.01) == pytest.approx(0.25 + 0.06 * 0.5)


def test_a_mechanism_that_sometimes_tells_everything_stays_within_the_bound() -> None:
    """All coins are told at once with probability δ: the worst kind of (ε, δ)-DP, as all guesses fail together."""
    epsilon, delta, canaries, repetitions = 0.5, 0.04, 20, 40_000
    coins = np.random.default_rng(1)
    right = coins.binomial(canaries, 1 / (1 + math.exp(-epsilon)), repetitions)
    right = np.where(coins.random(repetitions) < delta, canaries, right)
    seen_somewhere = False
    for least in range(10, canaries + 1):
        share = float((right >= least).mean())
        bound = chance_under_dp(Guesses(canaries, canaries, least), epsilon, delta)
        assert share <= bound + 4 * math.sqrt(share * (1 - share) / repetitions)
        seen_somewhere |= share > chance_under_dp(Guesses(canaries, canaries, least), epsilon, 0.0) + 0.01
    assert seen_somewhere, "without its δ term the bound would be broken"


def by_linear_program(guesses: Guesses, tradeoff: Tradeoff) -> float:
    """The largest P[at least so many right] that the constraints on all numbers of right guesses allow."""
    made, canaries = guesses.made, guesses.canaries
    numbers = np.arange(made + 1)
    rows, limits = [np.ones(made + 1)], [1.0]
    for least in range(1, made + 1):
        rightly = np.where(numbers >= least, numbers, 0) / canaries
        wrongly = np.where(numbers >= least - 1, made - numbers, 0) / canaries
        for slope, height in zip(tradeoff._slopes, tradeoff._heights, strict=True):
            rows.append(rightly + slope * wrongly)
            limits.append(1 - height)
    found = linprog(-(numbers >= guesses.right).astype(float), A_ub=np.array(rows), b_ub=limits)
    assert found.success
    return -float(found.fun)


@pytest.mark.parametrize("made", [4, 9, 15])
@pytest.mark.parametrize("noise", [0.6, 1.5, 4.0])
def test_the_recursion_solves_the_linear_program(noise: float, made: int) -> None:
    epsilons = np.linspace(0, 8, 25)
    deltas = norm.cdf(0.5 / noise - epsilons * noise) - np.exp(epsilons) * norm.cdf(
        -0.5 / noise - epsilons * noise
    )
    tradeoff = Tradeoff(epsilons, deltas)
    for right in range(made // 2 + 1, made + 1):
        guesses = Guesses(20, made, right)
        assert chance_under_tradeoff(guesses, tradeoff) == pytest.approx(
            by_linear_program(guesses, tradeoff), rel=4e-3, abs=1e-9
        )


def own_noise(coins: np.random.Generator, canaries: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    present = coins.random(canaries) < 0.5
    return present / noise + coins.normal(size=canaries), present


def test_a_right_mechanism_is_rarely_accused_and_a_wrong_one_often() -> None:
    noise, canaries, made = 2.0, 300, 60
    claim = Claim((Spend(1.0, noise, 1),), 1e-5)
    tradeoff, coins = claim.tradeoff(), np.random.default_rng(2)
    accused = {}
    for actual in (noise, noise / 4):
        count = 0
        for _ in range(200):
            scores, present = own_noise(coins, canaries, actual)
            order = np.argsort(scores)
            right = int((~present[order[: made // 2]]).sum() + present[order[-made // 2 :]].sum())
            count += is_impossible(0.05, Guesses(canaries, made, right), tradeoff)
        accused[actual] = count / 200
    assert accused[noise] <= 0.05
    assert accused[noise / 4] >= 0.9


def test_bounds_grow_with_right_guesses_and_confidence_lowers_them() -> None:
    claim = Claim((Spend(1.0, 1.0, 1),), 1e-5)
    epsilons = [lower_epsilon(Guesses(1000, 100, right), 1e-5, 0.95) for right in (50, 70, 90, 100)]
    assert epsilons[0] == 0
    assert epsilons == sorted(epsilons)
    scales = [lower_scale(Guesses(1000, 100, right), claim, 0.95) for right in (50, 70, 90, 100)]
    assert scales[0] == math.inf
    assert scales == sorted(scales, reverse=True)
    assert lower_epsilon(Guesses(1000, 100, 90), 1e-5, 0.999) < epsilons[2]
    assert lower_scale(Guesses(1000, 100, 90), claim, 0.999) > scales[2]
    assert chance_under_dp(Guesses(1000, 100, 90), epsilons[2], 1e-5) <= 0.05


@pytest.mark.parametrize("numbers", [(10, 11, 3), (10, 5, 6), (0, 0, 0), (10, -1, 0)])
def test_impossible_counts_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError):
        Guesses(*numbers)


def test_a_confidence_outside_is_refused() -> None:
    with pytest.raises(ArgumentError, match="confidence"):
        lower_epsilon(Guesses(10, 5, 5), 1e-5, 1.0)
