"""Does a private choice of rows beat a random one where a trained subset should pay? Few classes, a far domain, enough
steps.

Every way to fine-tune chooses its learning rate from the same grid, on a part of the training data and at every ε anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from tacit.jobs.finetuning import with_trained_part
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, result_record
from tacit_papers.sparta.table import rows_of

NAME = "sparta/regime"
EPSILONS = (2.0, 8.0)
RATES = (0.25, 1.0, 4.0)
MEASURE = "auc"
RATIO = 0.1
HEAD_EPOCHS, SELECTION_EPOCHS = 0.5, 0.25
TRAINING = TrainingConfig(batch_size=256, epochs=4.0)


@dataclass(frozen=True)
class Regime:
    """Where the examples come from, how many are used, and how many of the network's 19 blocks are frozen.

    ``ways`` are the ways to fine-tune: all, or fewer where a run takes long.
    """

    source: str
    examples: int | None
    frozen_blocks: int
    ways: tuple[str, ...] | None = None


SHIRTS = "tacit_papers.sparta.tasks:shirts"
REGIMES = {
    "shirts": Regime(SHIRTS, 6_000, 18),
    "shirts-deep": Regime(SHIRTS, None, 14),
    "pneumoniamnist": Regime("pneumoniamnist", None, 14, ("sparta", "random-rows")),
}
DATASETS = tuple(REGIMES)


_PHASES = {"active_ratio": RATIO, "head_epochs": HEAD_EPOCHS, "selection_epochs": SELECTION_EPOCHS}
WAYS = {
    "sparta": MethodConfig("sparta", **_PHASES),
    "sparta, votes": MethodConfig("sparta", score="votes", **_PHASES),
    "random-rows": MethodConfig("random-rows", active_ratio=RATIO),
    "magnitude-rows": MethodConfig("magnitude-rows", active_ratio=RATIO),
    "last-layer": MethodConfig("last-layer"),
}


def contestants(setting: Setting) -> list[Contestant]:
    """Every way on every task at every ε, with the same rates to choose from."""
    found = []
    for dataset in setting.datasets:
        regime = REGIMES[dataset]
        examples = 600 if setting.quick else regime.examples
        base = Experiment(
            data=DataConfig(regime.source, data_dir=setting.data_dir, examples=examples),
            model=ModelConfig(
                "mobilenet-v2", weights="public", image_size=32, frozen_blocks=regime.frozen_blocks
            ),
            privacy=PrivacyConfig(delta=1e-5),
            training=replace(TRAINING, epochs=1.5) if setting.quick else TRAINING,
        )
        problem = load_problem(base.data)
        assert problem.task is not None
        for epsilon in setting.epsilons:
            for label, method in ((way, WAYS[way]) for way in regime.ways or WAYS):
                described = with_trained_part(
                    replace(base, method=method), problem.task.outputs, problem.examples
                )
                experiment = replace(
                    described, training=base.training, privacy=replace(base.privacy, epsilon=epsilon)
                )
                rates = RATES[1:2] if setting.quick else RATES
                found.append(Contestant(f"{dataset} {label}", experiment, rates))
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Make the table."""
    started = time.monotonic()
    outcomes = setting.outcomes("regime", contestants(setting), MEASURE)
    rows = rows_of(outcomes, [MEASURE, "balanced_accuracy"])
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(NAME, setting, rows, spent, started, rates=list(RATES))
