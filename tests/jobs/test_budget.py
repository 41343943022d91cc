"""Runs are counted for what they have cost once that is all that they will cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

import pytest

from runs.test_certificate import make_run
from tacit.distributed.ranks import ALONE
from tacit.errors import ArgumentError, LedgerError
from tacit.jobs import budget as budgets
from tacit.jobs import run
from tacit.jobs.settings import DataConfig, Experiment
from tacit.plan import make_plan, plan_digest
from tacit.release.budget import read_budget, reserve
from tacit.release.ledger import FileLedger
from tacit.runs.layout import EXPERIMENT_FILE, LEDGER_FILE, MODEL_FILE
from tacit.training.trainer import Trainer


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n")
    return path


def test_a_run_that_goes_on_is_not_counted_for_what_it_has_charged_so_far(
    source: Path, tmp_path: Path
) -> None:
    """What it had reserved would be free for others, and it would charge the rest all the same."""
    budget = budgets.start_budget(str(source), epsilon=4, delta=1e-6)
    plan = make_plan(
        "dp-sgd", epsilon=1.0, delta=1e-6, examples=2000, batch_size=100, epochs=2, accountant="rdp"
    )
    cost = budgets.cost_of_plan(plan)
    run = tmp_path / "run"
    number = reserve(budget.path, cost, what="train", place=str(run))
    reserved = read_budget(budget.path).used
    run.mkdir()
    make_run(run, plan, steps=3)
    noted = {"file": str(budget.path), "number": number}
    (run / EXPERIMENT_FILE).write_text(json.dumps({"experiment": {}, "budget": noted}))
    with (
        FileLedger.open(run / LEDGER_FILE, run="run-1", plan_digest=plan_digest(plan)),
        pytest.raises(LedgerError, match="in use by another process"),
    ):
        budgets.count(run)
    assert read_budget(budget.path).used == reserved
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    with pytest.raises(ArgumentError, match="is a copy of the run"):
        budgets.count(copy)  # the run may have charged more since
    assert read_budget(budget.path).used == reserved
    assert budgets.count(run).used < reserved  # given up, it counts for its three releases


def test_a_model_that_lies_there_does_not_make_a_run_a_finished_one(source: Path, tmp_path: Path) -> None:
    plan = make_plan(
        "dp-sgd", epsilon=1.0, delta=1e-6, examples=2000, batch_size=100, epochs=2, accountant="rdp"
    )
    experiment = Experiment(data=DataConfig(source=str(source)))
    for name, steps in (("stopped", 3), ("finished", plan.steps)):
        run = tmp_path / name
        run.mkdir()
        make_run(run, plan, steps=steps)
        (run / EXPERIMENT_FILE).write_text(json.dumps({"experiment": {}}))
        (run / MODEL_FILE).write_bytes(b"a model")
    budget = budgets.start_budget(str(source), epsilon=4, delta=1e-6)
    budgets.resume_reservation(tmp_path / "finished", experiment, plan)
    assert not read_budget(budget.path).entries
    budgets.resume_reservation(tmp_path / "stopped", experiment, plan)
    assert len(read_budget(budget.path).entries) == 1


def test_a_resumed_run_is_paid_for_once_its_ledger_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, ``tacit budget count`` could count it for what it had charged so far, and let another run in."""
    done: list[str] = []

    class Resumed:
        ranks = ALONE

        def load(self) -> None:
            done.append("held")

        def close(self) -> None:
            done.append("given up")

        def fit(self, *, progress: bool) -> None:
            done.append("charged")

    def refused(*given: object) -> None:
        done.append("reserved")
        raise LedgerError("The budget is spent.")

    plan = make_plan("dp-sgd", epsilon=1.0, delta=1e-6, examples=200, batch_size=20, epochs=1)
    experiment = Experiment(data=DataConfig(source="rows.csv"))
    monkeypatch.setattr(run, "resume_reservation", refused)
    with pytest.raises(LedgerError):
        run._resumed(cast(Trainer, Resumed()), tmp_path, experiment, plan, progress=False)
    assert done == ["held", "reserved", "given up"]
