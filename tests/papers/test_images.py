from __future__ import annotations

from pathlib import Path

from tacit.jobs.recipes import RECIPES
from tacit_papers.engine.setting import Setting
from tacit_papers.images import table
from tacit_papers.images.published import FIELD
from tacit_papers.images.results_page import findings
from tacit_papers.pages import TITLES


def row(dataset: str, epsilon: float, accuracy: float) -> dict[str, object]:
    field = FIELD.get((dataset, epsilon))
    return {
        "dataset": dataset,
        "epsilon": epsilon,
        "features": "patches",
        "measure": "accuracy",
        "accuracy": {"mean": accuracy, "deviation": 0.001},
        "published": None if field is None else [field.accuracy, field.source],
    }


def test_every_recipe_takes_part_as_it_is() -> None:
    found = table.contestants(Setting(table.DATASETS, table.EPSILONS, 3, Path("out"), 1))
    assert len(found) == len(table.DATASETS) * len(table.EPSILONS)
    for contestant in found:
        experiment = contestant.experiment
        recipe = RECIPES[experiment.data.source, "best"]
        assert contestant.rates == (recipe.learning_rate(experiment.privacy.epsilon),)
        assert experiment.data.features == recipe.features


def test_the_field_stands_in_brackets_with_its_sources_below() -> None:
    record = {"rows": [row("cifar10", 1.0, 0.685), row("mnist", 1.0, 0.988), row("mnist", 3.0, 0.9912)]}
    shown = table.page(record, TITLES)
    assert "68.50 ± 0.10 (72.3)" in shown
    assert "98.80 ± 0.10 |" in shown
    assert "- CIFAR-10 at ε = 1: DP-RandP, Tang et al. 2023" in shown
    above, below = findings(record)
    assert above == "Above the field's best: MNIST at ε = 3 (+0.42)."
    assert below == "Below it: CIFAR-10 at ε = 1 (-3.80)."
