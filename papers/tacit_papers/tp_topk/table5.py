"""Table 5: medical data with two classes. EyePACS is not free; APTOS, PneumoniaMNIST and NHANES stand in for it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, outcome_record, result_record
from tacit_papers.tp_topk.published import TABLE5

NAME = "tp-topk/table5"
DATASETS = ("aptos-any", "pneumoniamnist", "nhanes")
EPSILONS = (1.0, 3.0, 8.0)
METHODS = ("no-noise", "dp-sgd", "tp-rand", "tp-topk")
ACTIVE_RATIO = 0.4
MEASURES = ("auc", "balanced_accuracy", "sensitivity", "specificity")


def contestants(setting: Setting) -> list[Contestant]:
    """All methods on all data sets; without noise there is one ε, and hence one contestant."""
    found = []
    for dataset in setting.datasets:
        for method in METHODS:
            for epsilon in setting.epsilons[:1] if method == "no-noise" else setting.epsilons:
                sparse = method in ("tp-rand", "tp-topk")
                options = {"active_ratio": ACTIVE_RATIO} if sparse else {}
                name = "dp-sgd" if method == "no-noise" else method
                experiment = setting.experiment(dataset, epsilon, name=name, **options)
                if method == "no-noise":
                    experiment = replace(experiment, privacy=replace(experiment.privacy, epsilon=math.inf))
                rate = experiment.training.learning_rate or 0.0
                rates = tuple(factor * rate for factor in setting.rate_factors)
                found.append(Contestant(f"{dataset} {method}", experiment, rates))
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Make the table. Learning rates are chosen by AUC."""
    started = time.monotonic()
    outcomes = setting.outcomes("table 5", contestants(setting), MEASURES[0])
    rows = []
    for outcome in outcomes:
        dataset, _, method = outcome.contestant.label.partition(" ")
        epsilon = outcome.contestant.epsilon
        rows.append(
            {
                "dataset": dataset,
                "method": method,
                "epsilon": None if math.isinf(epsilon) else epsilon,
                **outcome_record(outcome, MEASURES),
                "published": TABLE5[method]
                if dataset == "aptos-any" and epsilon in (8.0, math.inf)
                else None,
            }
        )
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(NAME, setting, rows, spent, started, active_ratio=ACTIVE_RATIO)
