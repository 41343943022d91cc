"""The recipes for images at three ε, beside the field's best without public data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tacit.data.features import features
from tacit.jobs.recipes import recipe
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, outcome_record, result_record
from tacit_papers.images.published import FIELD

NAME = "images"
DATASETS = ("mnist", "fmnist", "cifar10", "aptos-any", "pneumoniamnist")
EPSILONS = (1.0, 3.0, 8.0)
MEASURES = {"aptos-any": "auc", "pneumoniamnist": "auc"}
"""What is measured where it is not accuracy."""


def contestants(setting: Setting) -> list[Contestant]:
    """Every recipe as it is: nothing is tuned here."""
    found = []
    for dataset in setting.datasets:
        for epsilon in setting.epsilons:
            experiment = setting.experiment(dataset, epsilon, **recipe(dataset).sections(epsilon)["method"])
            rate = experiment.training.learning_rate or 0.0
            found.append(Contestant(f"{dataset} recipe", experiment, (rate,)))
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Make the table."""
    started = time.monotonic()
    outcomes = setting.outcomes("images", contestants(setting), "accuracy")
    rows = []
    for outcome in outcomes:
        experiment, epsilon = outcome.contestant.experiment, outcome.contestant.epsilon
        dataset, name = experiment.data.source, experiment.data.features
        field = FIELD.get((dataset, epsilon))
        rows.append(
            {
                "dataset": dataset,
                "epsilon": epsilon,
                "features": name,
                "features_version": None if name is None else features(name).version,
                "measure": MEASURES.get(dataset, "accuracy"),
                "published": None if field is None else [field.accuracy, field.source],
                **outcome_record(outcome, [MEASURES.get(dataset, "accuracy")]),
            }
        )
    return result_record(NAME, setting, rows, sum(outcome.processor_seconds for outcome in outcomes), started)


def page(record: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Data down, ε across, the field's best in brackets; then where that comes from."""
    epsilons = sorted({row["epsilon"] for row in record["rows"]})
    lines = [
        "| data | measure | " + " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |",
        "|" + "---|" * (2 + len(epsilons)),
    ]
    sources: dict[str, list[str]] = {}
    for dataset in dict.fromkeys(row["dataset"] for row in record["rows"]):
        own = {row["epsilon"]: row for row in record["rows"] if row["dataset"] == dataset}
        first = next(iter(own.values()))
        cells = [_cell(own[epsilon]) if epsilon in own else "" for epsilon in epsilons]
        lines.append("| " + " | ".join([titles[dataset], first["measure"], *cells]) + " |")
        for epsilon, row in own.items():
            if row["published"]:
                place = f"{titles[dataset]} at ε = {epsilon:g}"
                sources.setdefault(row["published"][1], []).append(place)
    if sources:
        lines += ["", "In brackets, the field's best without public data at δ = 1e-5:", ""]
        lines += [f"- {', '.join(places)}: {source}." for source, places in sources.items()]
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any]) -> str:
    figure, times, digits = row[row["measure"]], *((100, 2) if row["measure"] == "accuracy" else (1, 3))
    text = f"{times * figure['mean']:.{digits}f}"
    if figure["deviation"] is not None:
        text += f" ± {times * figure['deviation']:.{digits}f}"
    return text if row["published"] is None else f"{text} ({row['published'][0]:.1f})"
