"""``tacit train --folds``: cost first, every part held out once, one certificate for all."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Tacit
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig
from tacit.release.budget import read_budget
from tacit.training.trainer import Trainer

LINE = (
    "train p.csv --target won --folds 3 --epsilon 1 --delta 1e-4 --epochs 2 --batch-size 32 --model logistic "
    "--method dp-sgd --statistics rows --accountant rdp --quiet --out cv"
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    rng = random.Random(2)
    with (tmp_path / "p.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["age", "height", "won"])
        for _ in range(240):
            age = rng.randint(18, 90)
            out.writerow([age, rng.randint(150, 200), "yes" if age + rng.gauss(0, 9) > 50 else "no"])
    return tmp_path


def test_every_row_is_held_out_once_and_the_whole_is_certified(tacit: Tacit, table: Path) -> None:
    assert tacit("budget init p.csv --epsilon 9 --delta 1e-3").code == 0
    done = tacit(LINE)
    assert done.code == 0, done.err
    cost, forecast = done.err.splitlines()
    assert cost.startswith("3 runs of ε = 1; every example is trained on in 2 of them.")
    assert forecast.startswith("Budget 'p'")
    record = json.loads((table / "cv" / "cross-validation.json").read_text())
    assert f"ε = {record['epsilon']:.4g}" in cost
    assert 1.0 < record["epsilon"] < 2.0
    assert list(record["runs"]) == ["fold-1", "fold-2", "fold-3"]
    assert record["mean"]["auc"] == pytest.approx(sum(one["auc"] for one in record["folds"].values()) / 3)
    rows = [json.loads((table / "cv" / name / "held_out.json").read_text()) for name in record["runs"]]
    assert sum(sum(map(sum, one["confusion"])) for one in rows) == 240
    assert all(entry.charged is not None for entry in read_budget(table / "budgets" / "p.jsonl").entries)
    assert len(read_budget(table / "budgets" / "p.jsonl").entries) == 3
    verified = tacit("verify cv")
    assert verified.code == 0
    assert "2 of them were trained on" in verified.out.replace("\n", " ")
    assert tacit("verify cv/fold-2").code == 0
    again = tacit(LINE)  # finished: nothing is trained or paid again
    assert again.code == 0
    assert len(read_budget(table / "budgets" / "p.jsonl").entries) == 3


def test_the_rows_of_a_unit_are_held_out_together(tacit: Tacit, table: Path) -> None:
    rows = (table / "p.csv").read_text().splitlines()
    people = [f"p{place * place % 97}" for place in range(len(rows) - 1)]
    lines = [f"who,{rows[0]}", *(f"{who},{row}" for who, row in zip(people, rows[1:], strict=True))]
    (table / "p.csv").write_text("\n".join(lines) + "\n")
    done = tacit(LINE.replace("--folds", "--unit who --folds").replace("32", "16"))
    assert done.code == 0, done.err
    assert "every unit is trained on in 2 of them" in done.err.replace("\n", " ")
    held = [
        load_problem(DataConfig("p.csv", target="won", unit="who", fold=f"{part}/3")) for part in (1, 2, 3)
    ]
    sides = [set(one.task.held_out_units.tolist()) for one in held]
    assert sum(map(len, sides)) == len(set().union(*sides)) == len(set(people))
    assert tacit("verify cv").code == 0


@pytest.mark.parametrize("begun", [False, True])
def test_a_stopped_cross_validation_continues_and_pays_nothing_twice(
    tacit: Tacit, table: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    assert tacit("budget init p.csv --epsilon 9 --delta 1e-3").code == 0
    saved = Trainer.save

    def cut_off(trainer: Trainer) -> None:
        saved(trainer)
        if trainer.run_dir is not None and trainer.run_dir.name == "fold-2" and trainer.done >= begun:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "save", cut_off)
        assert tacit(LINE).code == 130
    budget = read_budget(table / "budgets" / "p.jsonl")
    # A run that never began has given back what it had reserved.
    assert [bool(entry.cost.spends) for entry in budget.entries] == [True, begun, True]
    assert (table / "cv" / "fold-2").exists() == begun
    first = (table / "cv" / "fold-1" / "certificate.json").read_bytes()
    assert tacit("verify cv").code == 1
    assert "is a cross-validation; the command that started it continues it" in tacit("resume cv").sentence
    reserved: list[bool] = []

    def looked_at(trainer: Trainer) -> None:
        reserved.append(bool(read_budget(table / "budgets" / "p.jsonl").entries[1].cost.spends))
        saved(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "save", looked_at)
        assert tacit(LINE).code == 0
    assert reserved
    assert all(reserved)  # also what had been given back, before anything is spent
    assert (table / "cv" / "fold-1" / "certificate.json").read_bytes() == first
    entries = read_budget(table / "budgets" / "p.jsonl").entries
    assert [bool(entry.cost.spends) and entry.charged is not None for entry in entries] == [True] * 3
    assert tacit("verify cv").code == 0


def test_what_does_not_fit_is_refused_before_anything_is_spent(tacit: Tacit, table: Path) -> None:
    assert tacit("budget init p.csv --epsilon 1.5 --delta 1e-4").code == 0
    refused = tacit(LINE)
    assert refused.code == 2
    assert "budget" in refused.err.splitlines()[-1]
    assert not (table / "cv").exists()
    assert read_budget(table / "budgets" / "p.jsonl").used == 0  # what fitted was given back


def test_a_dry_run_says_the_cost_and_stays_a_configuration(tacit: Tacit, table: Path) -> None:
    shown = tacit(f"{LINE} --dry-run")
    assert shown.code == 0
    assert "# 3 runs of ε = 1" in shown.out
    (table / "again.toml").write_text(shown.out)
    again = tacit("train --config again.toml --folds 3 --dry-run")
    assert again.out == shown.out
    cost: dict[str, Any] = tacit(f"{LINE} --dry-run --json").json["cost"]
    assert cost["touched"] == 2
    assert not (table / "cv").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--folds 1", "--folds must be from 2 to 50, got 1."),
        ("--fold 1/3", "leave out --fold"),
        ("--test p.csv", "leave out --test"),
        ("--witness w", "--witness follows one run"),
    ],
)
def test_bad_combinations(tacit: Tacit, table: Path, options: str, sentence: str) -> None:
    line = LINE.replace("--folds 3", options) if options.startswith("--folds") else f"{LINE} {options}"
    assert sentence in tacit(line).sentence


def test_one_part_alone_can_be_held_out(tacit: Tacit, table: Path) -> None:
    line = LINE.replace("--folds 3", "--fold 2/3").replace("--out cv", "--out one")
    assert tacit(line).code == 0
    for bad in ("0/3", "4/3", "2", "a/b", "1/1"):
        assert "fold must be" in tacit(line.replace("2/3", bad).replace("one", "bad")).sentence
    assert "says itself what to measure on" in tacit("train nhanes --fold 1/3").sentence
    refused = tacit(LINE.replace("--out cv", "--out one"))
    assert refused.code == 2
    assert refused.err.endswith("already exists, and is no cross-validation; choose another --out.\n")
