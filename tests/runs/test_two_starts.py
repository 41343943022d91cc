"""Two processes that start in one directory at the same moment: one has it, the other is refused and harms nothing."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit import FileError, Plan, TacitError, Trainer
from tacit.jobs import run as running
from tacit.jobs.settings import DataConfig, Experiment, PrivacyConfig, TrainingConfig
from tacit.release.ledger import FileLedger, read_ledger
from tacit.runs import run_directory as run_module
from tacit.runs import verify
from training.small import files, plan, trainer

_fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def private() -> Plan:
    return plan("tp-topk", epsilon=3.0, epochs=0.75)


def test_a_start_in_the_middle_of_another_is_refused(
    tmp_path: Path, private: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes after the first has looked and before it has a ledger."""
    refusals: list[str] = []
    save_plan = run_module.save_plan

    def and_meanwhile(given: Any, path: Path) -> None:
        save_plan(given, path)
        with pytest.raises(TacitError, match="in use by another process") as refused:
            trainer(plan("dp-sgd", epsilon=1.0), run_dir=tmp_path, seed=99).fit(progress=False)
        refusals.append(str(refused.value))

    monkeypatch.setattr(run_module, "save_plan", and_meanwhile)
    assert trainer(private, run_dir=tmp_path).fit(progress=False).finished
    assert len(refusals) == 1
    assert (
        json.loads((tmp_path / "run.json").read_text())["run"] == read_ledger(tmp_path / "ledger.jsonl").run
    )
    assert json.loads((tmp_path / "run.json").read_text())["seed"] != 99
    assert verify(tmp_path).agrees
    assert not list(tmp_path.glob(".*"))


def test_a_start_after_another_has_finished_its_own_is_refused_without_a_trace(
    tmp_path: Path, private: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has looked before the first began and goes on after it has a ledger."""
    first = trainer(private, run_dir=tmp_path)
    first.save()
    next(first.steps())
    before = files(tmp_path)
    monkeypatch.setattr(run_module, "holds_charges", lambda path: False)
    with pytest.raises(TacitError, match=r"exists already|in use"):
        trainer(private, run_dir=tmp_path).fit(progress=False)
    assert files(tmp_path) == before
    first.close()
    with pytest.raises(TacitError, match="exists already"):
        trainer(private, run_dir=tmp_path).fit(progress=False)
    assert files(tmp_path) == before


def test_of_two_processes_at_the_same_instant_exactly_one_starts(tmp_path: Path, private: Plan) -> None:
    def start(number: int, barrier: Any, place: Path) -> None:
        torch.manual_seed(number)
        run = trainer(private, run_dir=place / "run", seed=number)
        barrier.wait(60)
        try:
            run.fit(progress=False)
            outcome = "finished"
        except TacitError as error:
            outcome = str(error)
        (place / str(number)).write_text(outcome)

    for attempt in range(4):
        place = tmp_path / str(attempt)
        place.mkdir()
        barrier = _fork.Barrier(2)
        both = [_fork.Process(target=start, args=(number, barrier, place)) for number in range(2)]
        for process in both:
            process.start()
        for process in both:
            process.join(120)
        outcomes = [(place / str(number)).read_text() for number in range(2)]
        assert sorted(outcome == "finished" for outcome in outcomes) == [False, True], outcomes
        winner = outcomes.index("finished")
        assert json.loads((place / "run" / "run.json").read_text())["seed"] == winner
        verdict = verify(place / "run")
        assert verdict.agrees, verdict.problems


def test_what_a_crash_left_of_a_start_is_no_obstacle(tmp_path: Path, private: Plan) -> None:
    tmp_path.joinpath(".ledger.jsonl.new").write_bytes(b'{"digest":"half a header')
    with FileLedger.create(tmp_path / "ledger.jsonl", run="run-1", plan_digest="0" * 64):
        pass
    assert read_ledger(tmp_path / "ledger.jsonl").run == "run-1"


def test_a_preparation_that_fails_leaves_no_ledger(tmp_path: Path) -> None:
    def fail() -> None:
        raise FileError("no space")

    with pytest.raises(FileError, match="no space"):
        FileLedger.create(tmp_path / "ledger.jsonl", run="run-1", plan_digest="0" * 64, prepare=fail)
    assert not list(tmp_path.iterdir())


# The command ----------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> running.Job:
    rows = "".join(f"{age},{5 * age % 7},{'yes' if age % 3 else 'no'}\n" for age in range(20, 80))
    (tmp_path / "people.csv").write_text("age,visits,ill\n" + rows)
    return running.resolve(
        Experiment(
            data=DataConfig(source=str(tmp_path / "people.csv"), target="ill"),
            privacy=PrivacyConfig(epsilon=3.0),
            training=TrainingConfig(batch_size=12, epochs=3.0, seed=1),
        )
    )


def test_a_command_that_comes_second_removes_nothing_of_the_first(
    tmp_path: Path, job: running.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked before the first began; the first has written its description and not yet paid."""
    place = tmp_path / "run"
    fit = Trainer.fit

    def and_meanwhile(self: Trainer, **options: Any) -> Any:
        monkeypatch.setattr(Trainer, "fit", fit)
        monkeypatch.setattr(running, "_check_free", lambda run_dir: None)
        before = files(place)
        with pytest.raises(TacitError, match="File exists"):
            running.run_job(job, place, progress=False)
        assert files(place) == before
        return fit(self, **options)

    monkeypatch.setattr(Trainer, "fit", and_meanwhile)
    assert running.run_job(job, place, progress=False).result.finished
    assert verify(place).agrees


def test_a_command_that_cannot_begin_leaves_nothing(
    tmp_path: Path, job: running.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise FileError("no space")

    monkeypatch.setattr(running, "write_json", full)
    with pytest.raises(FileError, match="no space"):
        running.run_job(job, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
