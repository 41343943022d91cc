"""Shuffled answers: the bound against exact laws of shuffled mechanisms, the exact pair, and the published formula."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.errors import ArgumentError
from tacit.federated.shuffling import local_epsilon, shuffled_epsilon


def pair_delta(answers: int, local: float, epsilon: float) -> float:
    """δ of the pair of the theorem, by summing over all its outcomes."""
    kept, total = math.exp(local) / (1 + math.exp(local)), 0.0
    for clones in range(answers):
        at = np.arange(clones + 2)
        half, next_ = stats.binom.pmf(at, clones, 0.5), stats.binom.pmf(at - 1, clones, 0.5)
        one, other = kept * next_ + (1 - kept) * half, (1 - kept) * next_ + kept * half
        weight = stats.binom.pmf(clones, answers - 1, math.exp(-local))
        total += weight * np.maximum(one - math.exp(epsilon) * other, 0).sum()
    return float(total)


def closed_form(answers: int, local: float, delta: float) -> float:
    """Theorem 3.1's closed form, for ε₀ ≤ ln(n / (16 ln(2/δ)))."""
    grown = math.exp(local)
    first = 8 * math.sqrt(grown * math.log(4 / delta)) / math.sqrt(answers) + 8 * grown / answers
    return math.log(1 + (grown - 1) / (grown + 1) * first)


@pytest.mark.parametrize(("answers", "local"), [(1, 1.0), (10, 0.5), (100, 1.0), (400, 2.0), (400, 4.0)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_bound_is_that_of_the_pair_and_never_below_it(answers: int, local: float, delta: float) -> None:
    found = shuffled_epsilon(local, answers, delta)
    assert pair_delta(answers, local, found) <= delta * (1 + 1e-6)
    assert found <= local
    tighter = 0.98 * found
    assert pair_delta(answers, local, tighter) > delta or found < 1e-3


@pytest.mark.parametrize(("answers", "local"), [(10_000, 1.0), (1_000_000, 3.0), (10**8, 5.0)])
def test_the_bound_is_below_the_closed_form(answers: int, local: float) -> None:
    assert shuffled_epsilon(local, answers, 1e-6) <= closed_form(answers, local, 1e-6)


def exact_delta(
    tables: list[np.ndarray], epsilon: float, first: int, second: int, others: list[int]
) -> float:
    """δ between two heaps of answers of a mechanism with few outputs: all outcomes, counted without order."""

    def heap(inputs: list[int]) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        for outputs in itertools.product(range(len(tables[0])), repeat=len(inputs)):
            chance = math.prod(tables[x][y] for x, y in zip(inputs, outputs, strict=True))
            found[tuple(sorted(outputs))] += chance
        return found

    one, other = heap([first, *others]), heap([second, *others])
    return sum(max(0.0, chance - math.exp(epsilon) * other[outcome]) for outcome, chance in one.items())


@pytest.mark.parametrize("local", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("outputs", [2, 4])
def test_no_shuffled_mechanism_is_worse_than_the_bound(local: float, outputs: int) -> None:
    """Two-level mechanisms, as all of FedSel's are: every output has H or L tickets, whatever the input."""
    high, half = math.exp(local), outputs // 2
    tables = []
    for best in itertools.combinations(range(outputs), half):
        tickets = np.array([high if y in best else 1.0 for y in range(outputs)])
        tables.append(tickets / tickets.sum())
    last = len(tables) - 1
    for others in ([0] * 4, [last] * 4, [0, last, 0, last]):
        for delta in (1e-1, 1e-2, 1e-3):
            found = shuffled_epsilon(local, 5, delta)
            assert exact_delta(tables, found, 0, last, others) <= delta
            assert exact_delta(tables, found, last, 0, others) <= delta


def test_shuffled_responses_of_many_clients_stay_within_the_bound() -> None:
    """Randomised response of 500 clients, whose heap is a sum of two binomials: an attack on the bound itself."""
    local, answers = 1.0, 500
    kept = 1 / (1 + math.exp(-local))
    for ones in (0, 250, 499):
        rest = np.convolve(
            stats.binom.pmf(np.arange(ones + 1), ones, kept),
            stats.binom.pmf(np.arange(answers - ones), answers - 1 - ones, 1 - kept),
        )
        one = np.convolve(rest, [1 - kept, kept])
        other = np.convolve(rest, [kept, 1 - kept])
        for delta in (1e-2, 1e-4, 1e-6):
            found = shuffled_epsilon(local, answers, delta)
            for p, q in ((one, other), (other, one)):
                assert np.maximum(p - math.exp(found) * q, 0).sum() <= delta


def test_rounds_compose() -> None:
    """Two rounds, by the sum over all pairs of outcomes of two copies of the exact pair."""
    local, answers, delta = 1.0, 12, 1e-2
    kept = math.exp(local) / (1 + math.exp(local))
    losses: list[tuple[float, float]] = []
    for clones in range(answers):
        at = np.arange(clones + 2)
        half, next_ = stats.binom.pmf(at, clones, 0.5), stats.binom.pmf(at - 1, clones, 0.5)
        weight = stats.binom.pmf(clones, answers - 1, math.exp(-local))
        one, other = kept * next_ + (1 - kept) * half, (1 - kept) * next_ + kept * half
        losses += list(zip(weight * one, np.log(one / other), strict=True))
    chance, loss = np.array(losses).T
    both, sums = np.outer(chance, chance), loss[:, None] + loss[None, :]

    def exact(epsilon: float) -> float:
        return float((both * np.maximum(-np.expm1(epsilon - sums), 0)).sum())

    found = shuffled_epsilon(local, answers, delta, rounds=2)
    assert exact(found) <= delta < exact(0.97 * found)
    assert shuffled_epsilon(local, 10_000, 1e-6, 10) < 10 * shuffled_epsilon(local, 10_000, 1e-6)


def test_the_local_epsilon_for_a_central_one_is_the_largest() -> None:
    found = local_epsilon(1.0, 5_000, 1e-6)
    assert shuffled_epsilon(found, 5_000, 1e-6) <= 1.0 < shuffled_epsilon(1.01 * found, 5_000, 1e-6)
    assert local_epsilon(1.0, 1, 1e-6) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "answers", "delta"), [(0.0, 10, 0.1), (40.0, 10, 0.1), (1.0, 0, 0.1), (1.0, 9, 1e-15)]
)
def test_numbers_that_cannot_be_are_refused(epsilon: float, answers: int, delta: float) -> None:
    with pytest.raises(ArgumentError):
        shuffled_epsilon(epsilon, answers, delta)


def test_the_command_says_what_is_assumed() -> None:
    shown = CliRunner().invoke(app, ["fed", "shuffle", "--epsilon", "2", "--answers", "10000"])
    assert shown.exit_code == 0
    assert "central ε" in shown.output
    assert "must not collude" in " ".join(shown.output.split())
    both = ["fed", "shuffle", "--epsilon", "2", "--central", "1", "--answers", "10"]
    assert CliRunner().invoke(app, both).exit_code != 0
