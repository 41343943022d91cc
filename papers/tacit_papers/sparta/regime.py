"""Does a private choice of rows beat a random one where a trained subset should pay? Few classes, a far domain, enough
steps.

Every way to fine-tune chooses its learning rate from the same grid, on a part of the training data and at every ε anew.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tacit.jobs.finetuning import with_trained_part
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, outcome_record, result_record

NAME = "sparta/regime"
EPSILONS = (2.0, 8.0)
RATES = (0.25, 1.0, 4.0)
MEASURE = "auc"
RATIO = 0.1
HEAD_EPOCHS, SELECTION_EPOCHS = 0.5, 0.5
FROZEN_BLOCKS = 17

SOURCES = {"shirts": "tacit_papers.sparta.tasks:shirts", "pneumoniamnist": "pneumoniamnist"}
DATASETS = tuple(SOURCES)
EXAMPLES = {"shirts": 6_000, "pneumoniamnist": None}
TRAINING = TrainingConfig(batch_size=256, epochs=4.0)


def _selected(score: str) -> MethodConfig:
    return MethodConfig(
        "sparta",
        active_ratio=RATIO,
        score=score,
        head_epochs=HEAD_EPOCHS,
        selection_epochs=SELECTION_EPOCHS,
    )


WAYS = {
    "sparta": _selected("absolute"),
    "votes": _selected("votes"),
    "random-rows": MethodConfig("random-rows", active_ratio=RATIO),
    "magnitude-rows": MethodConfig("magnitude-rows", active_ratio=RATIO),
    "last-layer": MethodConfig("last-layer"),
}


def contestants(setting: Setting) -> list[Contestant]:
    """Every way on every task at every ε, with the same rates to choose from."""
    found = []
    for dataset in setting.datasets:
        base = Experiment(
            data=DataConfig(
                SOURCES[dataset],
                data_dir=setting.data_dir,
                examples=600 if setting.quick else EXAMPLES[dataset],
            ),
            model=ModelConfig("mobilenet-v2", weights="public", image_size=32, frozen_blocks=FROZEN_BLOCKS),
            privacy=PrivacyConfig(delta=1e-5),
            training=replace(TRAINING, epochs=1.5) if setting.quick else TRAINING,
        )
        problem = load_problem(base.data)
        assert problem.task is not None
        for epsilon in setting.epsilons:
            for label, method in WAYS.items():
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
    rows = [
        {
            "dataset": outcome.contestant.label.partition(" ")[0],
            "method": outcome.contestant.label.partition(" ")[2],
            "epsilon": outcome.contestant.epsilon,
            "processor_seconds": round(
                sum(run.processor_seconds for run in outcome.runs) / len(outcome.runs), 1
            ),
            **outcome_record(outcome, [MEASURE, "balanced_accuracy"]),
        }
        for outcome in outcomes
    ]
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(NAME, setting, rows, spent, started, rates=list(RATES))
