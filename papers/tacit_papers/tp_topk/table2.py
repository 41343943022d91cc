"""Table 2: five methods under the same plan, features and tuning, and the best recipe beside them."""

from __future__ import annotations

import time
from typing import Any

from tacit.jobs.recipes import recipe
from tacit_papers.engine.contest import Contestant, contest
from tacit_papers.engine.setting import Setting, outcome_record, result_record
from tacit_papers.tp_topk.published import TABLE2, best

NAME = "tp-topk/table2"
DATASETS = ("mnist", "fmnist", "cifar10")
EPSILONS = (1.0, 3.0, 8.0)
METHODS = ("dp-sgd", "tp-rand", "tp-topk", "on-rand", "on-topk")
ACTIVE_RATIO = 0.4
MEASURE = "accuracy"


def contestants(setting: Setting, dataset: str) -> list[Contestant]:
    """All methods on one data set, each with the same choice of learning rates."""
    found = []
    for epsilon in setting.epsilons:
        for method in METHODS:
            options = {} if method == "dp-sgd" else {"active_ratio": ACTIVE_RATIO}
            experiment = setting.experiment(dataset, epsilon, name=method, **options)
            rate = experiment.training.learning_rate or 0.0
            rates = tuple(factor * rate for factor in setting.rate_factors)
            found.append(Contestant(f"{dataset} {method}", experiment, rates))
    return found


def recipes(setting: Setting, dataset: str) -> list[Contestant]:
    """The best recipe at every ε, with its own learning rate."""
    found = []
    for epsilon in setting.epsilons:
        section = recipe(dataset).sections(epsilon)["method"]
        experiment = setting.experiment(dataset, epsilon, **section)
        found.append(
            Contestant(
                f"{dataset} {section['name']}", experiment, (experiment.training.learning_rate or 0.0,)
            )
        )
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Make the table, data set by data set."""
    started, spent = time.monotonic(), 0.0
    rows = []
    by_dataset = {dataset: contestants(setting, dataset) for dataset in setting.datasets}
    setting.prepare([group[0].experiment for group in by_dataset.values()])
    with setting.meter() as meter:
        for dataset, group in by_dataset.items():
            common: dict[str, Any] = {
                "seeds": setting.seeds,
                "out": setting.out / "runs",
                "workers": setting.workers,
                "meter": meter,
            }
            outcomes = contest(dataset, group, MEASURE, **common)
            finest = contest(f"{dataset}: best recipe", recipes(setting, dataset), MEASURE, **common)
            spent += sum(outcome.processor_seconds for outcome in outcomes)
            for place, epsilon in enumerate(setting.epsilons):
                own = outcomes[place * len(METHODS) : (place + 1) * len(METHODS)]
                published = TABLE2.get((dataset, epsilon), {})
                rows.append(
                    {
                        "dataset": dataset,
                        "epsilon": epsilon,
                        "published_best": best(dataset, epsilon),
                        "recipe": {
                            "method": finest[place].contestant.experiment.method.name,
                            **outcome_record(finest[place], [MEASURE]),
                        },
                        "methods": {
                            method: {
                                **outcome_record(outcome, [MEASURE]),
                                "published": published.get(method),
                            }
                            for method, outcome in zip(METHODS, own, strict=True)
                        },
                    }
                )
    return result_record(NAME, setting, rows, spent, started, active_ratio=ACTIVE_RATIO)
