"""Canaries among one's own data: like it, unlike every row; a model that memorises gives them away."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.errors import ArgumentError
from tacit.jobs.audit import WithCanaries, audit_data, make_canaries
from tacit.jobs.problem import Problem
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig

EXPERIMENT = Experiment(
    data=DataConfig(source="own"),
    model=ModelConfig(name="logistic"),
    method=MethodConfig("tp-topk", active_ratio=0.5),
    privacy=PrivacyConfig(epsilon=200.0, delta=1e-5, accountant="rdp"),
    training=TrainingConfig(batch_size=100, epochs=12.0, learning_rate=0.5, seed=3),
)


@pytest.fixture
def problem() -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 800, generator=generator) / 20
    data = TensorDataset(x, (x[:, 0] > 0).long())
    task = Task("own", data, data, "multiclass", (800,), ("low", "high"))
    return Problem("own", data, None, "multiclass", (), task)


def test_a_model_that_memorises_gives_canaries_away(problem: Problem) -> None:
    found = audit_data(EXPERIMENT, problem, canaries=300, confidence=0.95, seed=1)
    assert (found.kind, found.trials, found.sequential) == ("data", 300, False)
    assert 0.2 < found.epsilon_lower <= found.epsilon_claimed <= 200
    assert found.epsilon_lower_any > 0.1
    assert found.holds


def test_a_private_model_does_not(problem: Problem) -> None:
    private = replace(EXPERIMENT, privacy=replace(EXPERIMENT.privacy, epsilon=0.5))
    found = audit_data(private, problem, canaries=100, confidence=0.99, seed=2)
    assert found.holds
    assert found.epsilon_lower <= 0.5


def test_canaries_have_the_form_of_the_data_and_values_from_many_rows(problem: Problem) -> None:
    canaries = make_canaries(problem.train, 20, np.random.default_rng(0))
    rows = problem.train[:][0]
    for x, y in canaries:
        assert x.shape == (800,)
        assert y.dtype == torch.int64
        assert ((x[None] == rows).sum(1) < 60).all()
        assert (x[None] == rows).any(0).all()


def test_who_is_out_weighs_nothing(problem: Problem) -> None:
    data = WithCanaries(problem.train, ["first", "second"], np.array([True, False]))
    assert len(data) == 102
    assert data[99][1] == 1.0
    assert data[100] == ("first", 1.0)
    assert data[101] == ("second", 0.0)


def test_runs_without_a_promise_are_refused(problem: Problem) -> None:
    free = replace(EXPERIMENT, privacy=replace(EXPERIMENT.privacy, epsilon=math.inf))
    with pytest.raises(ArgumentError, match="nothing to audit"):
        audit_data(free, problem, canaries=100, confidence=0.9)
