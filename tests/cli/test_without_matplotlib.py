"""Without matplotlib every command keeps its results and says what a figure needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cli.conftest import Tacit
from tacit.plan import make_plan, save_plan
from tacit.plotting import FigureError, check_figures, new_figure

WORDS = "Figures need matplotlib: run pip install 'tacit-dp[figures]'."
OPTIONS = "--target renewed --epsilon 30 --batch-size 100 --epochs 1 --quiet"


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_nothing_is_drawn() -> None:
    for draw in (check_figures, lambda: new_figure(1, 1, dpi=50)):
        with pytest.raises(FigureError) as caught:
            draw()
        assert str(caught.value) == WORDS


def test_an_audit_is_kept(tacit: Tacit, tmp_path: Path) -> None:
    plan = make_plan("dp-sgd", epsilon=8, delta=1e-5, examples=600, batch_size=200, epochs=1)
    save_plan(plan, tmp_path / "plan.json")
    done = tacit("audit plan.json --canaries 64 --releases 4 --runs 1 --seed 1 --out found --json")
    assert done.json == json.loads(Path("found/audit.json").read_text())
    assert done.err.splitlines()[-1] == f"No audit.png: {WORDS}"
    assert not Path("found/audit.png").exists()


def test_a_comparison_and_a_diagnosis_are_kept(tacit: Tacit, orders: Path) -> None:
    line = (
        f"compare {orders} --target renewed --epsilons 30 --batch-size 100 --epochs 1 --seeds 1 --workers 1"
    )
    done = tacit(f"{line} --methods dp-sgd --out found --json")
    assert done.code == 0
    assert done.json["figure"] is None
    assert Path("found/comparison.json").exists()
    assert f"No comparison.png: {WORDS}" in done.err
    assert tacit(f"train {orders} {OPTIONS} --method dp-sgd --out run").code == 0
    done = tacit("diagnose run")
    assert done.code == 0
    assert "coordinates active" in done.out
    assert "Figure:" not in done.out
    assert f"No diagnosis.png: {WORDS}" in done.err


def test_a_figure_that_is_asked_for_is_refused_before_the_work(tacit: Tacit) -> None:
    assert tacit("fed simulate syn-L-0.1-0.6 --figure rates.png").sentence == WORDS
