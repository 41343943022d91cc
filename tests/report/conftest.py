from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tacit.jobs.run import run_job
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig

HOSTILE = '"><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'
"""A name that would run on a page that does not escape it."""

QUICK = Experiment(
    method=MethodConfig("tp-topk", active_ratio="auto", warmup=(0.5, 0.5)),
    privacy=PrivacyConfig(epsilon=20.0, delta=1e-4, accountant="rdp"),
    training=TrainingConfig(batch_size=100, epochs=10.0, learning_rate=1.0),
)


def train(path: Path, experiment: Experiment) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert run_job(experiment, path, progress=False).result.finished
    return path


@pytest.fixture(scope="session")
def hostile_data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """A table in which the names of file, column and class are attacks."""
    rng = random.Random(1)
    source = tmp_path_factory.mktemp("hostile") / f"{HOSTILE.replace('/', '∕')}.csv"
    with source.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["age", HOSTILE, "y"])
        for _ in range(500):
            x = rng.gauss(0, 1)
            out.writerow([rng.randint(20, 80), x, HOSTILE if x + rng.gauss(0, 0.5) > 0.5 else "no"])
    return DataConfig(str(source), target="y", positive=HOSTILE, prevalence=0.3)


@pytest.fixture(scope="session")
def hostile_run(hostile_data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binary run with seeded noise, in a directory with a name that is an attack too."""
    training = replace(QUICK.training, seed=0)
    place = tmp_path_factory.mktemp("seeded") / "run <b>&'1"
    return train(place, replace(QUICK, data=hostile_data, training=training))


@pytest.fixture(scope="session")
def released_run(hostile_data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with cryptographic noise, hence for release."""
    experiment = replace(
        QUICK,
        data=hostile_data,
        method=MethodConfig("dp-sgd"),
        training=replace(QUICK.training, epochs=5.0),
    )
    return train(tmp_path_factory.mktemp("released") / "released", experiment)


@pytest.fixture(scope="session")
def dense_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with several classes and seeded noise on scikit-learn's digits."""
    pytest.importorskip("sklearn")
    experiment = replace(
        QUICK,
        data=DataConfig("digits"),
        model=ModelConfig("mlp", width=8),
        method=MethodConfig("dp-sgd"),
        training=replace(QUICK.training, epochs=2.0, seed=0),
    )
    return train(tmp_path_factory.mktemp("dense") / "dense", experiment)
