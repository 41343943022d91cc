from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tacit.errors import ArgumentError
from tacit.federated import simulation as experiments
from tacit.federated.data import FederatedData, synthetic
from tacit.federated.local import sum_answers, two_stage_answers
from tacit.federated.models import Logistic, predict
from tacit.federated.plan import LocalPlan
from tacit.federated.simulation import Experiment, cross_validate, half_width, report, simulate

CLIENTS = synthetic(2_000, 20, 0.5, 0.5, seed=9)
MODEL = Logistic(20)


def run(**options: object) -> np.ndarray:
    plan = LocalPlan(**{"d": 20, "batch": 50, **options})  # type: ignore[arg-type]
    return simulate(plan, MODEL, CLIENTS, np.random.default_rng(1)).weights


def accuracy(weights: np.ndarray) -> float:
    return float(np.mean(predict(MODEL, weights, CLIENTS.x) == CLIENTS.y))


def test_full_gradients_equal_plain_sgd() -> None:
    order = np.random.default_rng(1).permutation(len(CLIENTS))
    weights = MODEL.initial()
    for start in range(0, len(order), 50):
        batch = order[start : start + 50]
        gradients = MODEL.gradients(weights, CLIENTS.x[batch], CLIENTS.y[batch])
        weights = weights - (0.1 * gradients.sum(axis=0, dtype=np.float64) / 50).astype(np.float32)
    np.testing.assert_array_equal(run(solution="full", perturb="none"), weights)


def test_two_stage_rounds_equal_the_client_by_client_run() -> None:
    """Two epochs with residuals kept by hand, against the vectorised store of the simulation."""
    plan = LocalPlan(d=20, batch=50, epochs=2, momentum=0.3, learning_rate=2.0)
    rng = np.random.default_rng(1)
    law, value = plan.selection(), plan.value_perturbation()
    residual = {i: np.zeros(20, np.float32) for i in range(len(CLIENTS))}
    weights = MODEL.initial()
    for _ in range(2):
        order = rng.permutation(len(CLIENTS))
        for start in range(0, len(order), 50):
            batch = order[start : start + 50]
            gradients = MODEL.gradients(weights, CLIENTS.x[batch], CLIENTS.y[batch])
            kept = np.stack([residual[i] for i in batch])
            answers, left = two_stage_answers(law, value, gradients, kept, 0.3, rng)
            residual.update(zip(batch, left, strict=True))
            weights = weights - (2.0 * sum_answers(answers, 20) / 50).astype(np.float32)
    np.testing.assert_array_equal(run(epochs=2, momentum=0.3, learning_rate=2.0), weights)


@pytest.mark.parametrize(
    "options",
    [
        {"solution": "full", "perturb": "none"},
        {"solution": "flat", "perturb": "none", "learning_rate": 0.05},
        {"select": "topk", "perturb": "none", "learning_rate": 1.0},
        {"select": "ps", "epsilon": 16.0, "learning_rate": 1.0},
        {"select": "exp", "epsilon": 16.0, "learning_rate": 1.0},
        {"select": "pe", "epsilon": 16.0, "learning_rate": 1.0, "epochs": 2},
        {"solution": "flat", "epsilon": 16.0, "learning_rate": 0.05},
        {"solution": "compressed", "epsilon": 16.0, "compression": 0.7, "learning_rate": 0.05},
    ],
)
def test_every_solution_learns_when_noise_is_small(options: dict[str, object]) -> None:
    assert accuracy(run(**options)) > 0.7


def test_scaled_accumulation_moves_the_same_without_noise() -> None:
    """Within the clip range it is the same step whether the clients or the server multiply by α."""
    quiet = FederatedData("quiet", np.asarray(CLIENTS.x) * np.float32(0.1), CLIENTS.y)
    plan = LocalPlan(d=20, batch=50, select="topk", perturb="none", learning_rate=0.2)
    a = simulate(plan, MODEL, quiet, np.random.default_rng(1)).weights
    b = simulate(replace(plan, scaled_accumulation=True), MODEL, quiet, np.random.default_rng(1)).weights
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_scaled_accumulation_has_noise_that_alpha_does_not_shrink() -> None:
    usual = run(learning_rate=0.05)
    scaled = run(learning_rate=0.05, scaled_accumulation=True)
    assert np.linalg.norm(scaled) > 8 * np.linalg.norm(usual)


def test_the_divisor_is_the_planned_batch_also_for_a_short_one() -> None:
    three = FederatedData("three", CLIENTS.x[:3], CLIENTS.y[:3])
    plan = LocalPlan(d=20, batch=1_000, solution="full", perturb="none", learning_rate=1.0)
    moved = simulate(plan, MODEL, three, np.random.default_rng(0)).weights
    gradients = MODEL.gradients(MODEL.initial(), three.x, three.y)
    np.testing.assert_allclose(moved, -gradients.sum(axis=0) / 1_000, rtol=1e-5)


def test_a_plan_of_another_dimension_is_refused() -> None:
    with pytest.raises(ArgumentError, match="19 coordinates"):
        simulate(LocalPlan(d=19, batch=5), MODEL, CLIENTS, np.random.default_rng(0))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    experiments.load_cached.cache_clear()
    monkeypatch.setattr(experiments, "load", lambda name, folder, seed: synthetic(400, 20, 0.5, 0.5, seed))
    yield
    experiments.load_cached.cache_clear()


@pytest.mark.usefixtures("small")
def test_cross_validation_is_reproducible_and_pairs_experiments() -> None:
    base = Experiment("toy", {"epsilon": 8.0}, folds=4, repeats=3, batch_share=0.1, curve=True)
    ticks: list[int] = []
    first = cross_validate(base, progress=lambda: ticks.append(1))
    second = cross_validate(base)
    np.testing.assert_array_equal(first.accuracy, second.accuracy)
    assert first.accuracy.shape == (3, 4)
    assert len(ticks) == 12
    assert first.curve is not None
    assert first.curve.shape == (12, len(first.rounds))
    np.testing.assert_allclose(first.curve[:, -1].reshape(3, 4), first.accuracy)
    result = report(base, first, 1.0)
    assert result["certificate"]["for release"] is False
    assert result["experiment"]["plan"]["d"] == 20


def test_several_processes_give_the_same_scores() -> None:
    task = Experiment("syn-L-0.1-0.6", {"epsilon": 8.0}, folds=2, repeats=2)
    np.testing.assert_array_equal(cross_validate(task, workers=2).accuracy, cross_validate(task).accuracy)


def test_half_width_uses_repeats_as_units() -> None:
    values = np.array([[0.5, 0.9], [0.6, 0.8], [0.7, 0.7], [0.65, 0.75], [0.4, 1.0]])
    assert half_width(values) == pytest.approx(0.0, abs=1e-12)
    assert half_width(np.array([[0.1, 0.2, 0.3]])) == pytest.approx(4.3027 * 0.1 / np.sqrt(3), rel=1e-3)


@pytest.mark.parametrize(("solution", "expected"), [("flat", 1.0), ("compressed", 0.6)])
def test_a_sampled_step_has_the_length_of_the_mean_gradient(solution: str, expected: float) -> None:
    """One batch of everyone, no noise: flat is unbiased; a projection to 60 % keeps 60 % of a direction."""
    quiet = FederatedData(
        "quiet", np.tile(np.asarray(CLIENTS.x) * np.float32(0.1), (20, 1)), np.tile(CLIENTS.y, 20)
    )
    plan = LocalPlan(
        d=20, batch=len(quiet), solution=solution, perturb="none", learning_rate=1.0, compression=0.6
    )
    mean = MODEL.gradients(MODEL.initial(), quiet.x, quiet.y).mean(axis=0)
    steps = [simulate(plan, MODEL, quiet, np.random.default_rng(s)).weights for s in range(20)]
    shares = [float(-step @ mean / (mean @ mean)) for step in steps]
    assert np.mean(shares) == pytest.approx(expected, abs=0.15)
