"""What is decided for tables when nothing is said, and what is said about models that learned nothing."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data import Kind, Task
from tacit.jobs.defaults import ADDITIVE_STEPS, additive_detail, additive_training, plan_of, too_few_rows
from tacit.jobs.held_out import cautions
from tacit.jobs.problem import Problem
from tacit.jobs.resolving import with_defaults
from tacit.jobs.run import Outcome, outcome_record, run_job
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig

KINDS: tuple[Kind, ...] = ("binary", "multiclass", "regression")


def table_problem(examples: int = 1000, columns: int = 5) -> Problem:
    data = TensorDataset(torch.zeros(examples, 4), torch.zeros(examples, 1))
    task = Task("t", data, data, "binary", (4,), ("no", "yes"), columns=columns)
    return Problem("t", data, data, "binary", (), task)


def test_a_table_gets_the_additive_model_and_dp_sgd() -> None:
    found = with_defaults(Experiment(), table_problem())
    assert found.model.name == "additive"
    assert found.method == MethodConfig("dp-sgd")
    assert (found.training.momentum, found.training.schedule) == (0.9, "linear")
    assert found.training.batch_size == 500
    assert found.training.epochs == ADDITIVE_STEPS / 2
    assert plan_of(found, 1000).steps == ADDITIVE_STEPS


def test_what_is_given_is_kept() -> None:
    given = Experiment(
        method=MethodConfig("tp-topk", active_ratio=0.5),
        training=TrainingConfig(
            batch_size=64, epochs=3.0, clip_norm=1.0, learning_rate=0.25, momentum=0.0, schedule="constant"
        ),
    )
    found = with_defaults(given, table_problem())
    assert found.method == given.method
    assert found.training == replace(given.training, clip_norm=1.0)
    named = with_defaults(replace(given, method=MethodConfig("tp-topk")), table_problem())
    assert (named.method.name, named.method.active_ratio) == ("tp-topk", "auto")
    assert (
        with_defaults(Experiment(model=replace(given.model, name="mlp")), table_problem()).training.momentum
        == 0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_longer_with_more_rows_and_epsilon_and_never_diverges(kind: Kind) -> None:
    def rate(examples: int, columns: int, epsilon: float) -> float:
        found = additive_training(TrainingConfig(), kind, examples, columns, epsilon)
        assert found.learning_rate is not None
        assert found.batch_size is not None
        assert found.epochs is not None
        assert round(found.epochs * examples / found.batch_size) == ADDITIVE_STEPS
        assert 0 < found.learning_rate <= (2 if kind == "regression" else 16)
        return found.learning_rate

    for columns in (1, 10, 1000):
        by_epsilon = [rate(20_000, columns, epsilon) for epsilon in (0.1, 0.5, 1, 3, 8, 100, float("inf"))]
        by_rows = [rate(rows, columns, 1.0) for rows in (2, 100, 1000, 10_000, 1_000_000)]
        for rates in (by_epsilon, by_rows):
            assert all(first <= second for first, second in itertools.pairwise(rates))


def test_adam_keeps_its_own_rate() -> None:
    found = additive_training(TrainingConfig(optimizer="adam"), "binary", 1000, 5, 1.0)
    assert (found.learning_rate, found.momentum) == (0.01, 0.0)


def write(path: Path, header: list[str], columns: list[np.ndarray]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return path


def trained(path: Path, **data: object) -> Outcome:
    experiment = Experiment(
        data=DataConfig(str(path), target="y", **data),  # type: ignore[arg-type]
        privacy=PrivacyConfig(3.0),
        training=TrainingConfig(seed=0),
    )
    return run_job(experiment, path.parent / "run", progress=False)


def test_a_bent_shape_is_learned_without_any_setting(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3))
    y = rng.random(4000) < 1 / (1 + np.exp(3 - 3 * np.abs(x[:, 0])))
    path = write(tmp_path / "t.csv", ["a", "b", "c", "y"], [*x.T, np.where(y, "yes", "no")])
    found = trained(path)
    assert found.result.measured["auc"] > 0.75
    assert found.warnings == ()


def test_a_regression_with_outliers_does_not_diverge(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4))
    y = 100 * x[:, 0] + 50 * x[:, 1] + rng.normal(size=3000) * 20
    x[rng.random(x.shape) < 0.01] = 9999
    y[:5] = 1e7
    path = write(tmp_path / "t.csv", ["a", "b", "c", "d", "y"], [*x.T, y])
    found = trained(path, kind="regression")
    assert found.result.measured["r2"] > 0.6
    assert any("'a' holds 9999" in warning for warning in found.warnings)


def test_noise_is_said_to_be_no_better_than_guessing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write(
        tmp_path / "t.csv", ["a", "y"], [rng.normal(size=400), np.where(rng.random(400) < 0.3, "yes", "no")]
    )
    found = trained(path)
    assert any("no better than guessing" in warning for warning in outcome_record(found)["warnings"])


def held_out(kind: Kind, y: list[float]) -> Problem:
    targets = torch.tensor(y) if kind != "multiclass" else torch.tensor(y).long()
    data = TensorDataset(torch.zeros(len(y), 1), targets)
    return Problem("t", data, data, kind, ())


def test_cautions() -> None:
    few = held_out("binary", [1.0] * 10 + [0.0] * 90)
    assert "no better than guessing" in cautions(few, {"auc": 0.55, "balanced_accuracy": 0.5})[0]
    assert "--prevalence" in cautions(few, {"auc": 0.9, "balanced_accuracy": 0.51})[0]
    for sensitivity, side in ((0.05, "above"), (0.97, "below")):
        shares = {"sensitivity": sensitivity, "specificity": 1.02 - sensitivity}
        assert (
            f"few predictions are {side}"
            in cautions(few, {"auc": 0.9, "balanced_accuracy": 0.51, **shares})[0]
        )
    assert cautions(few, {"auc": 0.9, "balanced_accuracy": 0.8}) == []
    assert cautions(few, {}) == []
    assert cautions(held_out("binary", [1.0] * 5), {"auc": float("nan")})[0].startswith(
        "All 5 held-out rows are of one"
    )
    three = held_out("multiclass", [0.0] * 300 + [1.0] * 100 + [2.0] * 100)
    for chance in (0.6, 0.62):  # the second by luck
        assert "right in 60.0% of 500 held-out rows" in cautions(three, {"accuracy": chance})[0]
    assert cautions(three, {"accuracy": 0.7}) == []
    assert "predicting the mean" in cautions(held_out("regression", [0.1, 0.2]), {"r2": -0.1})[0]
    assert cautions(held_out("regression", [0.1, 0.2]), {"r2": 0.1}) == []
    assert cautions(Problem("t", three.train, None, "binary", ()), {"auc": 0.1}) == []


def test_parts_of_numbers_count_less_where_few_rows_pay_for_each_column() -> None:
    assert additive_detail(16_000, 214, 3.0) == pytest.approx(0.052)
    assert additive_detail(16_000, 1157, 8.0) == 0
    assert additive_detail(39_000, 14, 0.2) == 1
    found = [additive_detail(20_000, 100, epsilon) for epsilon in (0.1, 0.5, 1, 3, 8, float("inf"))]
    assert found == sorted(found)
    assert with_defaults(Experiment(), table_problem()).model.detail == 1
    given = Experiment(model=ModelConfig(name="additive", detail=0.3))
    assert with_defaults(given, table_problem()).model.detail == 0.3


def test_rows_that_are_too_few_for_their_columns_are_named() -> None:
    assert too_few_rows(12, 4, 1.0)[0].startswith("12 training rows are few for 4 columns at ε = 1")
    assert too_few_rows(30, 1, 3.0)[0].startswith("30 training examples are few at ε = 3")
    assert "at least 34," in too_few_rows(30, 0, 3.0)[0]
    assert not too_few_rows(1000, 4, 1.0)
    assert not too_few_rows(5, 4, float("inf"))


def test_very_wide_tables_train_shorter_and_others_as_before() -> None:
    """Where noise on all weights together would be longer than what they learn; see WIDE."""

    def rate(columns: int, examples: int = 10_000) -> float:
        found = additive_training(TrainingConfig(), "binary", examples, columns, 1.0).learning_rate
        assert found is not None
        return found

    for columns, examples in ((15, 34_000), (61, 1348), (147, 6272), (114, 15_000), (314, 15_000)):
        length = 0.5 * (examples / columns) ** 0.8
        assert rate(columns, examples) == pytest.approx(length * (columns + 1) * 0.2 / 400, rel=0.01)
    length = 0.5 * (10_500 / 1157) ** 0.8
    assert rate(1157, 10_500) == pytest.approx(0.17 * length * 1158 * 0.2 / 400, rel=0.02)
