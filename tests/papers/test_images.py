from __future__ import annotations

import json
from pathlib import Path

from tacit.data.features import features
from tacit.jobs.recipes import RECIPES
from tacit_papers.engine.setting import Setting
from tacit_papers.images import table
from tacit_papers.images.published import FIELD
from tacit_papers.images.results_page import FOLDER, PAGE, findings, outdated, page
from tacit_papers.pages import TITLES


def row(dataset: str, epsilon: float, accuracy: float) -> dict[str, object]:
    field = FIELD.get((dataset, epsilon))
    return {
        "dataset": dataset,
        "epsilon": epsilon,
        "features": "patches",
        "features_version": features("patches").version,
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


def test_the_page_is_what_the_numbers_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tacit_papers.images.results_page"


def test_the_page_says_where_the_features_have_changed_since() -> None:
    new, old = row("cifar10", 1.0, 0.7), row("mnist", 1.0, 0.9)
    assert outdated({"rows": [new, {**new, "features_version": None}]}) == []
    now = features("patches").version
    old["features_version"] = now - 1
    said = f"Measured with an earlier version of the features, not again since: MNIST (`patches` {now - 1}, now {now})."
    assert outdated({"rows": [new, old, old]}) == [said]


def test_a_cell_that_was_measured_anew_replaces_the_old_one(tmp_path: Path) -> None:
    for name in ("table2.json", "table5.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    new = {"command": "tacit reproduce images", "commit": "abc", "rows": [row("cifar10", 1.0, 0.999)]}
    (tmp_path / "images.json").write_text(json.dumps(new))
    shown = page(tmp_path)
    assert "99.90 ± 0.10 (72.3)" in shown
    assert all(f"[{name}]({name})" in shown for name in ("table2.json", "table5.json", "images.json"))
