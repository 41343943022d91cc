from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tacit.errors import ArgumentError
from tacit.federated.selection import (
    PRIVATE_SELECTIONS,
    calibrated_logit,
    encoding_epsilon,
    encoding_probabilities,
    output_probabilities,
    perturbed_encoding_as_published,
    ranks,
    selection_law,
    top_k,
)

EPSILONS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


def enumerated_encoding(d: int, k: int, keep: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """(f_top, f_rest, P[⊥]) of PE by running over all 2^d perturbed marks; the top k are the last k."""
    output = [Fraction(0)] * (d + 1)
    for marks in itertools.product((0, 1), repeat=d):
        probability = Fraction(1)
        for j, mark in enumerate(marks):
            truth = 1 if j >= d - k else 0
            probability *= keep if mark == truth else 1 - keep
        if sum(marks) == 0:
            output[d] += probability
        for j, mark in enumerate(marks):
            if mark:
                output[j] += probability / sum(marks)
    return output[d - 1], output[0], output[d]


@pytest.mark.parametrize(("d", "k"), [(2, 1), (3, 1), (5, 2), (7, 3), (8, 1), (9, 8)])
def test_closed_form_of_pe_equals_enumeration_of_all_marks(d: int, k: int) -> None:
    keep = Fraction(5, 7)
    expected = enumerated_encoding(d, k, keep)
    computed = encoding_probabilities(d, k, math.log(5 / 2))
    np.testing.assert_allclose([float(x) for x in computed], [float(x) for x in expected], rtol=1e-13)


@pytest.mark.parametrize(("d", "k", "logit"), [(300, 30, 0.05), (300, 150, 8.0), (10_000, 1_000, 1.0)])
def test_closed_form_of_pe_sums_to_one(d: int, k: int, logit: float) -> None:
    top, rest, bottom = encoding_probabilities(d, k, logit)
    assert k * top + (d - k) * rest + bottom == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_private_selection_exceeds_its_epsilon_on_the_whole_grid(epsilon: float) -> None:
    for d in range(2, 301):
        assert selection_law("exp", d, 1, epsilon).epsilon <= epsilon + 1e-9
        k = np.arange(1, d // 2 + 1)
        exact = encoding_epsilon(d, k, calibrated_logit(d, k, epsilon))
        assert exact.max() <= epsilon + 1e-12
        assert exact.min() >= epsilon - 1e-11
        assert abs(selection_law("pe", d, max(1, d // 10), epsilon).epsilon - epsilon) <= 1e-9
        for top in range(1, d // 2 + 1):
            assert abs(selection_law("ps", d, top, epsilon).epsilon - epsilon) <= 1e-9


def test_published_pe_exceeds_its_epsilon() -> None:
    assert perturbed_encoding_as_published(10, 1, 1.0).epsilon == pytest.approx(1.173, abs=5e-4)
    for d in (2, 10, 100, 300):
        for epsilon in EPSILONS:
            assert perturbed_encoding_as_published(d, max(1, d // 10), epsilon).epsilon > epsilon + 1e-5


@pytest.mark.parametrize("name", PRIVATE_SELECTIONS)
def test_epsilon_equals_the_worst_pair_of_inputs_by_enumeration(name: str) -> None:
    law = selection_law(name, 5, 2, 1.3)
    vectors = np.array(list(itertools.permutations([1.0, -2.0, 3.0, -4.0, 5.0])))
    table = output_probabilities(law, vectors)
    table = table[:, table.max(axis=0) > 0]
    worst = np.log(table.max(axis=0) / table.min(axis=0)).max()
    assert worst == pytest.approx(law.epsilon, abs=1e-12)


def test_output_probabilities_follow_magnitudes_and_sum_to_one() -> None:
    law = selection_law("exp", 4, 1, 2.0)
    table = output_probabilities(law, np.array([[0.1, -9.0, 3.0, 0.0]]))
    assert table.sum() == pytest.approx(1.0)
    assert list(np.argsort(table[0, :4])) == [3, 0, 2, 1]
    assert table[0, 1] / table[0, 3] == pytest.approx(math.exp(2.0))


def test_ps_matches_the_published_probability() -> None:
    d, k, epsilon = 20, 3, 0.7
    law = selection_law("ps", d, k, epsilon)
    published = math.exp(epsilon) * k / (d - k + math.exp(epsilon) * k)
    assert law.by_rank[d - k :].sum() == pytest.approx(published, rel=1e-13)


def test_ties_are_ranked_by_position() -> None:
    np.testing.assert_array_equal(ranks(np.array([[0.0, 2.0, 0.0, 2.0]])), [[1, 3, 2, 4]])


def test_controls_state_that_they_are_free_or_not_private() -> None:
    assert selection_law("random", 7, 1, 1.0).epsilon == 0.0
    assert top_k(7, 2).epsilon == math.inf


@pytest.mark.parametrize(
    ("name", "d", "k", "epsilon"),
    [("ps", 1, 1, 1.0), ("ps", 5, 5, 1.0), ("pe", 5, 0, 1.0), ("exp", 5, 1, 0.0), ("ps", 5, 1, math.nan)],
)
def test_bad_parameters_are_refused(name: str, d: int, k: int, epsilon: float) -> None:
    with pytest.raises(ArgumentError):
        selection_law(name, d, k, epsilon)


def test_unknown_selection_names_the_choices() -> None:
    with pytest.raises(ArgumentError, match="pe-paper"):
        selection_law("best", 5, 1, 1.0)
