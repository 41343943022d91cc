from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tacit.federated import simulation as experiments
from tacit.federated.data import synthetic
from tacit.federated.simulation import Experiment, Scores
from tacit_papers.fedsel import PANELS
from tacit_papers.fedsel.reproduce import Runner, _difference, reproduce, table_markdown
from tacit_papers.fedsel.settings import Setting, figures, selection_only, table_experiments


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    experiments.load_cached.cache_clear()
    monkeypatch.setattr(
        experiments, "load", lambda name, folder, seed: synthetic(300, 20, 0.5, 0.5, seed, name=name)
    )
    yield
    experiments.load_cached.cache_clear()


@pytest.mark.usefixtures("tiny")
def test_every_part_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit_papers.fedsel.reproduce.TABLE_DATA", ("adult",))
    setting = Setting(folds=2, repeats=2)
    reproduce(tmp_path, ("table3", "rates", "2a", "2e", "3c"), setting, Setting(folds=2, repeats=1))
    table = json.loads((tmp_path / "table3.json").read_text())
    assert len(table["rows"]) == 2
    assert (tmp_path / "table3.md").read_text().count("\n") == 2 + 2 * 3
    assert len(json.loads((tmp_path / "rates.json").read_text())["rows"]) == 2
    for image in ("figure-2a", "figure-2e", "figure-3c", "rates-adult-svm"):
        assert (tmp_path / f"{image}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_every_panel_has_a_plan_that_can_run() -> None:
    setting = Setting(folds=2, repeats=1)
    panels = figures(setting)
    assert {panel.name for panel in panels} | {"2e"} == set(PANELS)
    runner = Runner(1, lambda line: None)
    for panel in panels:
        for name, points in panel.lines.items():
            assert 0 <= runner.scores(name, points[-1][1]).mean <= 1


def test_gain_loss_and_order_are_paired_differences() -> None:
    a, b = np.array([[0.80, 0.82], [0.70, 0.72]]), np.array([[0.75, 0.77], [0.65, 0.67]])
    mean, half = _difference(a, b)
    assert mean == pytest.approx(5.0)
    assert half == pytest.approx(0.0, abs=1e-9)


def test_controls_spend_what_the_paper_says() -> None:
    plans = {
        name: e.plan_for(synthetic(1_000, 50, 0.5, 0.5, 0))
        for name, e in table_experiments(Setting(), "adult", "svm").items()
    }
    assert plans["PM"].exact_epsilon() == pytest.approx(2.0)
    for select in ("EXP", "PE", "PS"):
        assert plans[f"{select}-PM"].exact_epsilon() == pytest.approx(2.0)
        assert plans[f"{select}-PM-C"].exact_epsilon() == pytest.approx(2.2)
    quiet = Experiment("x", selection_only(4.0, "ps")).plan_for(synthetic(1_000, 50, 0.5, 0.5, 0))
    assert quiet.epsilon1 == pytest.approx(4.0)
    assert quiet.perturb == "none"


def test_table_shows_published_numbers_beside_ours() -> None:
    entry = {
        "gain": (4.0, 0.5),
        "loss": (1.0, 0.2),
        "two-stage over flat": (3.0, 0.4),
        "choice over random": (0.1, 0.2),
        "published": (5.5, 0.3),
    }
    row = {
        "data": "adult",
        "model": "svm",
        "accuracy": {"PM": {"mean": 0.73, "half width": 0.01}},
        **dict.fromkeys(("exp", "pe", "ps"), entry),
    }
    assert "| 4.00 ± 0.50 (5.50) | 1.00 ± 0.20 (0.30) | +3.00 ± 0.40 | +0.10 ± 0.20 |" in table_markdown(
        [row]
    )


def test_runner_runs_equal_experiments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Experiment] = []

    def fake(experiment: Experiment, workers: int) -> Scores:
        calls.append(experiment)
        return Scores(*np.zeros((4, 1, 2)))

    monkeypatch.setattr("tacit_papers.fedsel.reproduce.cross_validate", fake)
    runner = Runner(1, lambda line: None)
    for name in ("first", "second"):
        runner.scores(name, Experiment("adult", {"epsilon": 1.0}))
    assert len(calls) == 1
