"""``tacit audit``: figures beside the claim, files in the run directory, exit code 1 when a claim is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Tacit
from tacit.plan import make_plan, save_plan
from tacit.release.noise import SeededNoise

EFFORT = "--canaries 512 --releases 16 --runs 1"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    chosen = make_plan(
        "tp-rand", epsilon=8, delta=1e-5, examples=600, batch_size=200, epochs=2, active_ratio=0.5
    )
    save_plan(chosen, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_file(tacit: Tacit, plan: Path, tmp_path: Path) -> None:
    done = tacit(f"audit {plan} {EFFORT} --seed 1 --out {tmp_path / 'found'} --json")
    assert done.code == 0
    assert done.json == json.loads((tmp_path / "found" / "audit.json").read_text())
    assert (tmp_path / "found" / "audit.png").stat().st_size > 10_000
    kinds = [finding["kind"] for finding in done.json["findings"]]
    assert kinds == ["release", "release", "phase", "phase", "run"]
    assert done.json["holds"] is True
    for finding in done.json["findings"]:
        assert finding["epsilon_lower"] <= finding["epsilon_claimed"]
        assert finding["confidence"] == 0.999
    assert [len(curve["claimed"]) for curve in done.json["curves"]] == [51] * 5
    table = tacit(f"audit {plan} {EFFORT} --seed 1 --quiet").out
    assert "No claim is contradicted: each of 5 lower bounds" in table
    assert "Confidence of each lower bound: 0.999." in table


def test_a_run_directory_keeps_its_audit(tacit: Tacit, orders: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = "--epsilon 30 --batch-size 100 --epochs 2 --method dp-sgd --quiet"
    assert tacit(f"train {orders} --target renewed {options} --out {run}").code == 0
    done = tacit(f"audit {run} {EFFORT} --data 60 --seed 1 --json")
    assert done.code == 0
    assert [finding["kind"] for finding in done.json["findings"]] == ["release", "phase", "run", "data"]
    assert json.loads((run / "audit.json").read_text()) == done.json


def test_weak_noise_is_exit_code_1(tacit: Tacit, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SeededNoise.add
    monkeypatch.setattr(SeededNoise, "add", lambda self, values, scale, by: real(self, values, scale / 2, by))
    done = tacit(f"audit {plan} {EFFORT} --seed 1 --quiet")
    assert done.code == 1
    assert "BROKEN" in done.out
    assert "release 'warm-up'" in done.out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("audit nowhere", "There is no run directory or plan file nowhere."),
        ("audit --data 100", "--data needs a run directory"),
        ("audit --seed 1", "with and without a seed"),
        ("audit nowhere --canaries 3", "canaries must be a whole number of at least 40"),
        ("audit nowhere --confidence 2", "confidence must lie in (0, 1)"),
    ],
)
def test_bad_input_is_one_sentence(tacit: Tacit, line: str, sentence: str) -> None:
    assert sentence in tacit(line).sentence
