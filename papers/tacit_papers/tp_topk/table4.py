"""Table 4: how TP-TopK depends on the warm-up's share of the steps and of ε."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, outcome_record, result_record
from tacit_papers.tp_topk.published import TABLE4

NAME = "tp-topk/table4"
DATASETS = ("fmnist", "cifar10")
EPSILONS = (1.0, 3.0, 8.0)
SHARES = (0.2, 0.3, 0.4)
ACTIVE_RATIO = 0.4
MEASURE = "accuracy"


def contestants(setting: Setting) -> list[Contestant]:
    """TP-TopK at every split, all at the learning rate of the recipe."""
    found = []
    for dataset in setting.datasets:
        for epsilon in setting.epsilons:
            for steps in SHARES:
                for budget in SHARES:
                    experiment = setting.experiment(
                        dataset, epsilon, name="tp-topk", active_ratio=ACTIVE_RATIO, warmup=(steps, budget)
                    )
                    rate = experiment.training.learning_rate or 0.0
                    found.append(Contestant(f"{dataset} warm-up {steps:g} {budget:g}", experiment, (rate,)))
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Make the table."""
    return measured(NAME, setting, contestants(setting))


def measured(name: str, setting: Setting, splits: Sequence[Contestant]) -> dict[str, Any]:
    """The record of ``name``: TP-TopK with every split of the warm-up."""
    started = time.monotonic()
    outcomes = setting.outcomes(name, splits, MEASURE)
    rows = []
    for outcome in outcomes:
        experiment = outcome.contestant.experiment
        dataset, epsilon = experiment.data.source, experiment.privacy.epsilon
        steps, budget = experiment.method.warmup or (0.0, 0.0)
        rows.append(
            {
                "dataset": dataset,
                "epsilon": epsilon,
                "share_of_steps": steps,
                "share_of_epsilon": budget,
                **outcome_record(outcome, [MEASURE]),
                "published": TABLE4.get((dataset, epsilon), {}).get((steps, budget)),
            }
        )
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(name, setting, rows, spent, started, active_ratio=ACTIVE_RATIO)
