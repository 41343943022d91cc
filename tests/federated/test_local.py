from __future__ import annotations

import numpy as np
import pytest

from tacit.federated.local import Answers, flat_answers, sum_answers, two_stage_answers
from tacit.federated.perturbation import Duchi, Piecewise, Unperturbed
from tacit.federated.sampling import BOTTOM
from tacit.federated.selection import RankLaw, perturbed_sampling, top_k


def rng() -> np.random.Generator:
    return np.random.default_rng(6)


def test_algorithm_one_by_hand() -> None:
    residual = np.array([[0.1, -0.6, 0.0], [0.2, 0.0, 0.0]], np.float32)
    gradient = np.array([[0.0, 0.2, 0.3], [0.1, 0.0, -0.2]], np.float32)
    answers, left = two_stage_answers(top_k(3, 1), Unperturbed(), gradient, residual, 0.5, rng())
    # r' = [0.1, -0.4, 0.3] and [0.3, 0, -0.2]: the largest are coordinates 1 and 0; s = r'_j + η r_j.
    np.testing.assert_array_equal(answers.coordinate, [1, 0])
    np.testing.assert_allclose(answers.value, [-0.4 + 0.5 * -0.6, 0.3 + 0.5 * 0.2], rtol=1e-6)
    np.testing.assert_allclose(left, [[0.1, 0.0, 0.3], [0.0, 0.0, -0.2]], rtol=1e-6)


def test_a_first_round_has_no_residual() -> None:
    gradient = np.array([[0.0, 0.2, 0.3]], np.float32)
    answers, left = two_stage_answers(top_k(3, 1), Unperturbed(), gradient, None, 0.5, rng())
    assert (answers.coordinate[0], answers.value[0]) == (2, pytest.approx(0.3))
    np.testing.assert_allclose(left, [[0.0, 0.2, 0.0]])
    np.testing.assert_allclose(gradient, [[0.0, 0.2, 0.3]])


def test_values_are_clipped_before_they_are_perturbed() -> None:
    gradient = np.full((20_000, 2), 50.0, np.float32)
    answers, _ = two_stage_answers(perturbed_sampling(2, 1, 1.0), Piecewise(1.0), gradient, None, 0.0, rng())
    assert np.abs(answers.value).max() <= Piecewise(1.0).bound
    assert answers.value.mean() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_nothing_is_added_after_the_perturbation(momentum: float) -> None:
    """Duchi's mechanism has two outputs; a residual that is added to one of them shows at once."""
    vectors = rng().normal(size=(500, 4)).astype(np.float32)
    residual = rng().normal(size=(500, 4)).astype(np.float32)
    answers, _ = two_stage_answers(
        perturbed_sampling(4, 1, 1.0), Duchi(1.0), vectors, residual, momentum, rng()
    )
    assert set(answers.value.tolist()) == {-Duchi(1.0).bound, Duchi(1.0).bound}


def test_gradients_that_are_not_finite_count_as_zero() -> None:
    broken = np.array([[np.nan, np.inf, 0.1, -np.inf]], np.float32)
    answers, left = two_stage_answers(top_k(4, 1), Unperturbed(), broken, None, 0.0, rng())
    assert answers.coordinate[0] == 2
    assert np.isfinite(left).all()


def test_residuals_that_overflow_count_as_zero() -> None:
    """A sum of two huge numbers is no number; ranks that compare with it would not be ranks."""
    gradient = np.array([[3e38, -3e38, 0.1, 0.2]], np.float32)
    with np.errstate(over="ignore"):
        answers, left = two_stage_answers(top_k(4, 1), Unperturbed(), gradient, gradient, 0.0, rng())
    assert answers.coordinate[0] == 3
    assert np.isfinite(left).all()


def test_bottom_sends_nothing_and_keeps_the_residual() -> None:
    silent = RankLaw("silent", np.zeros(3, np.int64), bottom_tickets=1)
    gradient = np.array([[0.1, 0.2, 0.3]], np.float32)
    answers, left = two_stage_answers(silent, Duchi(1.0), gradient, None, 0.0, rng())
    assert answers.coordinate[0] == BOTTOM
    assert answers.value[0] == 0.0
    np.testing.assert_array_equal(left, gradient)
    np.testing.assert_array_equal(sum_answers(answers, 3), np.zeros(3))


def test_sum_of_answers_is_sparse_addition() -> None:
    answers = Answers(np.array([2, BOTTOM, 2, 0]), np.array([1.5, 9.0, -0.5, 2.0]))
    np.testing.assert_array_equal(sum_answers(answers, 4), [2.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("count", [1, 3])
def test_flat_answers_are_unbiased_once_enlarged(count: int) -> None:
    n, d = 60_000, 5
    vector = np.array([0.9, -0.5, 0.0, 0.3, -1.0])
    answers = flat_answers(Piecewise(3.0), np.tile(vector, (n, 1)), count, rng())
    mean = sum(sum_answers(a, d) for a in answers) * d / count / n
    np.testing.assert_allclose(mean, vector, atol=0.05)
    if count > 1:
        stacked = np.stack([a.coordinate for a in answers])
        assert all(len(set(column)) == count for column in stacked[:, :200].T)
