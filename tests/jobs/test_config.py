from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.errors import ArgumentError
from tacit.jobs.comparison import cells_of
from tacit.jobs.defaults import default_batch_size, plan_of
from tacit.jobs.problem import Problem
from tacit.jobs.resolving import with_defaults
from tacit.jobs.settings import (
    DataConfig,
    Experiment,
    MethodConfig,
    PrivacyConfig,
    TrainingConfig,
    experiment_of,
    from_record,
    merged,
    to_record,
    to_toml,
)
from tacit.jobs.setup import build_model
from tacit.models.config import ModelConfig

FULL = Experiment(
    DataConfig(
        'odd "name".csv',
        target="y",
        drop=("a", "b\n"),
        prevalence=0.1,
        grey=True,
        kind="binary",
        data_dir="/x",
    ),
    ModelConfig("mlp", width=3, depth=2),
    MethodConfig(
        "tp-topk",
        active_ratio="auto",
        warmup=(0.5, 0.7),
        score="movement",
        pooling="row",
        per_layer=True,
        reset=False,
        always_active=("*.bias",),
    ),
    PrivacyConfig(math.inf, 1e-6, accountant="rdp"),
    TrainingConfig(7, 2.5, (1.0, 0.5), "adam", 0.01, 0.0, schedule="cosine", average=0.9, seed=3),
)


@pytest.mark.parametrize("experiment", [Experiment(), FULL])
def test_experiments_survive_toml_and_json(experiment: Experiment) -> None:
    assert experiment_of(tomllib.loads(to_toml(experiment))) == experiment
    again = from_record(json.loads(json.dumps(to_record(experiment), allow_nan=False)), Path("x"))
    assert again == experiment


def test_changes_go_before_the_file_and_nothing_hides_nothing() -> None:
    record = {"training": {"epochs": 3, "momentum": 0.5}}
    found = experiment_of(
        merged(record, {"training": {"epochs": 4, "momentum": None}, "model": {"width": 2}})
    )
    assert (found.training.epochs, found.training.momentum, found.model.width) == (4, 0.5, 2)
    assert record == {"training": {"epochs": 3, "momentum": 0.5}}


def problem(examples: int = 1000) -> Problem:
    data = TensorDataset(torch.zeros(examples, 4), torch.zeros(examples, 1))
    task = Task("t", data, data, "binary", (4,), ("no", "yes"))
    return Problem("t", data, data, "binary", (), task)


def test_defaults_follow_from_public_numbers() -> None:
    found = with_defaults(Experiment(), problem())
    assert found.model.name == "logistic"
    assert (found.method.active_ratio, found.method.reset) == ("auto", None)
    assert [phase.reset for phase in plan_of(found, 1000).phases] == [False, True]
    assert found.privacy.delta == 1e-5
    assert found.training.batch_size == 256
    assert with_defaults(Experiment(), problem(100_000)).privacy.delta == pytest.approx(1e-6)
    given = with_defaults(FULL, problem())
    assert given == FULL
    assert [default_batch_size(n) for n in (1, 2, 100, 6677, 60_000)] == [1, 1, 50, 512, 2048]


def test_a_model_starts_at_the_prevalence() -> None:
    experiment = with_defaults(Experiment(data=DataConfig(prevalence=0.1)), problem())
    outputs = build_model(experiment, problem())(torch.zeros(2, 4))
    assert torch.allclose(torch.sigmoid(outputs), torch.tensor(0.1))


def test_a_seed_fixes_initial_weights() -> None:
    base = with_defaults(Experiment(model=ModelConfig("mlp"), training=TrainingConfig(seed=1)), problem())
    first, second = build_model(base, problem()), build_model(base, problem())
    other = build_model(replace(base, training=replace(base.training, seed=2)), problem())
    assert torch.equal(first[1].weight, second[1].weight)  # type: ignore[index, union-attr, arg-type]
    assert not torch.equal(first[1].weight, other[1].weight)  # type: ignore[index, union-attr, arg-type]


def test_cells_pair_seeds_and_drop_options_a_method_does_not_have() -> None:
    base = Experiment(method=MethodConfig(active_ratio=0.2, reset=True))
    cells = cells_of(base, ["dp-sgd", "tp-topk", "rs:0.5", "no-noise"], [1.0, 3.0], range(2))
    assert len(cells) == 2 * 2 * 3 + 2
    by_label = {cell.method: cell.experiment.method for cell in cells}
    assert by_label["dp-sgd"].options == {}
    assert by_label["tp-topk"].options == {"active_ratio": 0.2, "reset": True}
    assert by_label["rs:0.5"].options == {"active_ratio": 0.5}
    assert {cell.epsilon for cell in cells if cell.method == "no-noise"} == {math.inf}
    assert all(cell.experiment.training.seed == cell.seed for cell in cells)
    assert len({cell.file for cell in cells}) == len(cells)
    with pytest.raises(ArgumentError, match="seed"):
        cells_of(base, ["dp-sgd"], [1.0], [-1])
