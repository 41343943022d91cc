"""The bound for trials with fresh coins: right at the stated confidence, close, and valid if trials follow others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from tacit.audit import Claim, Guesses, Tradeoff, Trials, explains_sequential, lower_scale
from tacit.audit.bounds import RULES, guess_by_rules, is_impossible
from tacit.audit.mechanism import log_ratio
from tacit.audit.record import find
from tacit.audit.sequential import _allowed
from tacit.errors import ArgumentError
from tacit.plan import Spend

GAUSSIAN = Claim((Spend(1.0, 2.0, 1),), 1e-5)
SAMPLED = Claim((Spend(0.1, 0.7, 20),), 1e-5)


def trials(claim: Claim, count: int, coins: np.random.Generator, weakened: float = 1.0) -> Trials:
    """Perfect attacks on the claimed mechanism, with its noise times ``weakened``."""
    present = coins.random(count) < 0.5
    scores = np.zeros(count)
    for spend in claim.spends:
        for _ in range(spend.steps):
            signal = present & (coins.random(count) < spend.sampling_rate)
            noise = spend.noise_multiplier
            scores += log_ratio(
                signal + weakened * noise * coins.normal(size=count), spend.sampling_rate, noise
            )
    return Trials(scores, present)


@pytest.mark.parametrize(("claim", "least"), [(GAUSSIAN, 5), (SAMPLED, 0)], ids=["gaussian", "sampled"])
def test_a_right_mechanism_is_accused_no_more_often_than_the_confidence_says(
    claim: Claim, least: int
) -> None:
    """Sometimes it is, for a Gaussian; the curve of a sampled one covers both directions at once."""
    coins, error, accused = np.random.default_rng(3), 0.1, 0
    tradeoff = claim.tradeoff()
    for _ in range(200):
        for made in guess_by_rules(trials(claim, 1000, coins)):
            accused += not explains_sequential(error, made, tradeoff)
    assert accused <= 200 * len(RULES) * error + 6 * math.sqrt(200 * error * (1 - error))
    assert accused >= least


@pytest.mark.parametrize(("claim", "share"), [(GAUSSIAN, 0.9), (SAMPLED, 0.75)], ids=["gaussian", "sampled"])
def test_the_bound_is_close_and_weakened_noise_breaks_the_claim(claim: Claim, share: float) -> None:
    coins = np.random.default_rng(4)
    right, weak = (
        find("phase", "p", trials(claim, 100_000, coins, w), claim, confidence=0.999, sequential=True)
        for w in (1.0, 2 / 3)
    )
    assert share * right.epsilon_claimed <= right.epsilon_lower <= right.epsilon_claimed
    assert right.holds
    assert weak.epsilon_lower > weak.epsilon_claimed
    assert not weak.holds
    assert right.epsilon_lower_any < right.epsilon_lower


def test_what_is_allowed_ends_at_the_best_accuracy_without_abstaining() -> None:
    corners, border = _allowed(GAUSSIAN.tradeoff())
    assert border[-1] == pytest.approx([norm.cdf(0.25), norm.cdf(-0.25), 0.0], abs=1e-3)
    assert (border >= 0).all()
    assert border.sum(1) == pytest.approx(1.0)
    assert corners[:, 0].max() == border[-1, 0]


@pytest.mark.parametrize("error", [0.2, 0.02])
def test_trials_that_follow_earlier_ones_are_accused_no_more_often(error: float) -> None:
    """A mechanism that is f-DP given the past and plays against the test: harder guesses once it is behind."""
    coins, noise = np.random.default_rng(6), 2.0
    accused = 0
    for _ in range(300):
        right = made = 0
        for _ in range(150):
            present = coins.random() < 0.5
            value = present + noise * coins.normal()
            # Ahead of what is expected it guesses only where it is surest; behind, everywhere.
            ahead = right > 0.62 * made
            if abs(value - 0.5) > (4.0 if ahead else 0.0):
                made += 1
                right += (value > 0.5) == present
        accused += not explains_sequential(error, Guesses(150, made, right, 0.5), GAUSSIAN.tradeoff())
    assert accused <= 300 * error + 4 * math.sqrt(300 * error * (1 - error))


def test_coins_that_are_told_together_break_this_bound_and_not_the_one_run_bound() -> None:
    """Once in twenty all coins are told at once: right for each canary by itself, but no trial is fresh then.

    This is why a run whose supports follow what was released is judged by the one-run bound.
    """
    epsilons = np.array([0.0, 0.5])
    claim = Tradeoff(epsilons, np.array([0.05 + 0.95 * math.tanh(0.25), 0.05]))
    coins, error, runs = np.random.default_rng(7), 0.01, 2000
    accuracy = 1 / (1 + math.exp(-0.5))
    right = np.where(coins.random(runs) < 0.05, 100, coins.binomial(100, accuracy, runs))
    guesses = [Guesses(100, 100, int(r)) for r in right]
    assert np.mean([not explains_sequential(error, g, claim) for g in guesses]) > 3 * error
    assert np.mean([is_impossible(error, g, claim) for g in guesses]) <= error


def test_nothing_is_learnt_from_coin_tosses_or_from_nothing() -> None:
    assert lower_scale(Guesses(1000, 0, 0), GAUSSIAN, 0.9, explains_sequential) == math.inf
    assert lower_scale(Guesses(1000, 1000, 500), GAUSSIAN, 0.9, explains_sequential) == math.inf


def test_canaries_that_show_through_are_seen_though_they_are_few() -> None:
    """One canary in fifty without noise: all others hide it from an average."""
    coins = np.random.default_rng(5)
    found = trials(GAUSSIAN, 20_000, coins)
    bare = np.arange(20_000) % 50 == 0
    scores = np.where(bare, np.where(found.present, 50.0, -50.0), found.scores)
    finding = find("release", "r", Trials(scores, found.present), GAUSSIAN, confidence=0.999, sequential=True)
    assert not finding.holds


def test_thresholds_are_not_chosen_on_what_is_counted() -> None:
    first, counted = Trials(np.arange(100.0), np.zeros(100, bool)).split(0.25)
    assert len(first) == 25
    assert not set(first.scores) & set(counted.scores)


def test_guesses_count_ties_and_open_ones() -> None:
    found = Trials(np.array([0.0, 1.0, 1.0, 2.0]), np.array([False, True, False, True]))
    assert found.guess(0.0, 2.0) == Guesses(4, 2, 2)
    assert found.guess(1.0, 1.0) == Guesses(4, 4, 3)
    assert found.guess(-math.inf, 1.0) == Guesses(4, 3, 2)


@pytest.mark.parametrize("scores", [np.array([math.nan, 1.0]), np.zeros(3), np.zeros((2, 1))])
def test_scores_that_cannot_be_ranked_are_refused(scores: np.ndarray) -> None:
    with pytest.raises(ArgumentError):
        Trials(scores, np.zeros(2, bool))


def test_too_few_trials_are_refused() -> None:
    few = Trials(np.zeros(10), np.zeros(10, bool))
    with pytest.raises(ArgumentError, match="at least 40 trials"):
        find("run", "r", few, GAUSSIAN, confidence=0.9, sequential=True)
