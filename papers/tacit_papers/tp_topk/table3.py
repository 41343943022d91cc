"""Table 3: does the learned support beat a random one of the same size, and at which active ratio?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tacit.jobs.summary import paired
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, outcome_record, result_record
from tacit_papers.tp_topk.published import TABLE3

NAME = "tp-topk/table3"
DATASETS = ("fmnist", "cifar10")
EPSILONS = (1.0, 3.0, 8.0)
METHODS = ("tp-rand", "tp-topk")
RATIOS = (0.2, 0.4, 0.6, 0.8)
MEASURE = "accuracy"


def contestants(setting: Setting) -> list[Contestant]:
    """Both methods at every ratio, all at the learning rate of the recipe."""
    found = []
    for dataset in setting.datasets:
        for epsilon in setting.epsilons:
            for ratio in RATIOS:
                for method in METHODS:
                    experiment = setting.experiment(dataset, epsilon, name=method, active_ratio=ratio)
                    rate = experiment.training.learning_rate or 0.0
                    found.append(Contestant(f"{dataset} {method} {ratio:g}", experiment, (rate,)))
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Make the table."""
    return measured(NAME, setting, contestants(setting))


def measured(name: str, setting: Setting, pairs: Sequence[Contestant]) -> dict[str, Any]:
    """The record of ``name``: TP-Rand and TP-TopK by turns, and what the second gains."""
    started = time.monotonic()
    outcomes = setting.outcomes(name, pairs, MEASURE)
    rows = []
    for rand, topk in zip(outcomes[::2], outcomes[1::2], strict=True):
        experiment = topk.contestant.experiment
        differences = [t - r for t, r in zip(topk.values(MEASURE), rand.values(MEASURE), strict=True)]
        gain = paired(differences)
        dataset, epsilon = experiment.data.source, experiment.privacy.epsilon
        ratio = experiment.method.active_ratio
        assert isinstance(ratio, float)
        rows.append(
            {
                "dataset": dataset,
                "epsilon": epsilon,
                "active_ratio": ratio,
                "tp-rand": outcome_record(rand, [MEASURE]),
                "tp-topk": outcome_record(topk, [MEASURE]),
                "gain": {"mean": gain.mean, "error": gain.deviation if len(differences) > 1 else None},
                "published": TABLE3.get((dataset, epsilon), {}).get(ratio),
            }
        )
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(name, setting, rows, spent, started)
