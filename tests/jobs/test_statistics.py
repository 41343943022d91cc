"""Measuring a table's columns in a run: charged first, written down, resumed, certified and verified."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data import Category, Number, read_schema
from tacit.data.read_table import open_table
from tacit.errors import ArgumentError, LedgerError, TacitError
from tacit.jobs import columns
from tacit.jobs.columns import names_log_delta
from tacit.jobs.run import Job, resolve, run_job
from tacit.jobs.settings import DataConfig, Experiment, PrivacyConfig, TrainingConfig
from tacit.plan.sources import Columns
from tacit.release.ledger_file import read_ledger
from tacit.runs import load_certificate, verify

ROWS = 3000
RARE = "a village that one row names"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("table") / "people.csv"
    age = rng.integers(18, 90, ROWS)
    place = np.array(["North", "South", "East"])[rng.integers(0, 3, ROWS)].tolist()
    place[7] = RARE
    flag = rng.integers(0, 2, ROWS)
    ill = rng.random(ROWS) < 1 / (1 + np.exp(-(age - 70) / 8))
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "place", "member", "ill"])
        rows.writerows(zip(age, place, flag, np.where(ill, "yes", "no"), strict=True))
    return path


def experiment(source: Path, epsilon: float = 8.0, **data: Any) -> Experiment:
    return Experiment(
        data=DataConfig(source=str(source), target="ill", **data),
        privacy=PrivacyConfig(epsilon=epsilon),
        training=TrainingConfig(epochs=2.0, batch_size=500),
    )


def run(source: Path, out: Path, epsilon: float = 8.0, **data: Any) -> Path:
    found = run_job(experiment(source, epsilon, **data), out, progress=False)
    assert found.run_dir is not None
    return found.run_dir


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(source, tmp_path_factory.mktemp("runs") / "run")


def test_counts_are_charged_before_training_within_epsilon(finished: Path) -> None:
    charges = read_ledger(finished / "ledger.jsonl").charges
    assert [charge.phase for charge in charges[:4]] == ["columns"] * 3 + ["train"]
    assert [charge.step for charge in charges] == list(range(len(charges)))
    assert {charge.sampling_rate for charge in charges[:3]} == {1.0}
    certificate = load_certificate(finished / "certificate.json")
    assert certificate.epsilon_spent <= certificate.epsilon == 8
    assert certificate.phases[0].releases == 3
    assert certificate.for_release
    assert "counts of the table's columns" in certificate.mechanism
    assert certificate.coordinates
    assert not certificate.groups
    assert not certificate.curve


def test_the_schema_of_a_run_holds_what_was_measured(finished: Path) -> None:
    schema = read_schema(finished / "schema.toml")
    age, place, member = (schema.columns[name] for name in ("age", "place", "member"))
    assert isinstance(age, Number)
    assert isinstance(place, Category)
    assert isinstance(member, Number)
    assert all(column.public and column.measured for column in (age, place, member))
    assert 10 < age.low < 32
    assert 70 < age.high < 130
    assert set(place.values) == {"North", "South", "East"}
    assert place.others
    assert (member.low, member.high, member.cuts) == (0, 1, (1,))
    assert schema.target.shares[1] == pytest.approx(0.29, abs=0.06)


def test_no_file_of_the_run_names_what_one_row_holds(finished: Path) -> None:
    for path in finished.iterdir():
        assert RARE.encode() not in path.read_bytes(), path.name


def test_the_certificate_says_what_is_covered_and_what_is_not(finished: Path) -> None:
    sentences = load_certificate(finished / "certificate.json").not_covered
    assert any("were measured with noise and are covered" in sentence for sentence in sentences)
    assert not any("cuts (quantiles)" in sentence for sentence in sentences)
    assert any("classes of the target 'ill': read off" in sentence for sentence in sentences)


def test_a_run_with_counts_verifies_and_an_edited_one_does_not(finished: Path, tmp_path: Path) -> None:
    assert verify(finished).agrees

    def edited(name: str, change: Any) -> list[str]:
        copy = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        copy.mkdir()
        for path in finished.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        change(copy / name)
        return list(verify(copy).problems)

    def another_count(path: Path) -> None:
        record = json.loads(path.read_text())
        record["rounds"][0]["classes"][0] += 1
        path.write_text(json.dumps(record))

    def another_round(path: Path) -> None:
        record = json.loads(path.read_text())
        record["rounds"].append({**record["rounds"][0], "index": 7})
        path.write_text(json.dumps(record))

    assert any("another digest" in problem for problem in edited("statistics.json", another_count))
    assert any("not charged for" in problem for problem in edited("statistics.json", another_round))
    assert any("statistics.json is missing" in problem for problem in edited("statistics.json", Path.unlink))
    narrower = edited(
        "schema.toml", lambda path: path.write_text(path.read_text().replace("North", "Norths"))
    )
    assert any("schema.toml is not the one" in problem for problem in narrower)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_round_that_a_crash_has_lost_stays_charged_and_is_not_repeated(
    lost: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def write(path: Path, record: Any, **options: Any) -> None:
        nonlocal written
        written += 1
        if written == lost + 1:
            raise OSError("power cut")
        genuine(path, record, **options)

    genuine = columns.write_json
    monkeypatch.setattr(columns, "write_json", write)
    with pytest.raises(OSError, match="power cut"):
        run(source, tmp_path / "run")
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == lost + 1
    monkeypatch.setattr(columns, "write_json", genuine)
    found = run_job(tmp_path / "run", command="resume", progress=False)
    assert found.result.finished
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    job = resolve(experiment(source))
    assert len(charges) == job.plan.steps
    assert [charge.phase for charge in charges].count("columns") == 3
    rounds = json.loads((tmp_path / "run" / "statistics.json").read_text())["rounds"]
    assert [entry["index"] for entry in rounds] == [index for index in range(3) if index != lost]
    assert verify(tmp_path / "run").agrees


def test_counts_that_were_all_lost_end_the_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: Any, **__: Any) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(columns, "write_json", write)
    for attempt in range(3):
        with pytest.raises(OSError, match="power cut"):
            run(source, tmp_path / "run") if not attempt else run_job(
                tmp_path / "run", command="resume", progress=False
            )
    with pytest.raises(LedgerError, match="start a new run"):
        run_job(tmp_path / "run", command="resume", progress=False)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == 3


def test_a_run_that_stops_between_counting_and_training_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.training.trainer import Trainer

    def fit(self: Trainer, *, progress: bool = True) -> None:
        self.close()
        assert self._begun is not None
        assert self._begun.run is not None
        self._begun.run.ledger.close()
        raise OSError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "fit", fit)
        with pytest.raises(OSError, match="power cut"):
            run(source, tmp_path / "run")
    assert run_job(tmp_path / "run", command="resume", progress=False).result.finished
    assert verify(tmp_path / "run").agrees


def test_only_training_rows_are_counted_each_once(source: Path) -> None:
    table = open_table(source, "ill")
    asked = table.questions([])
    rows = int(table.training.sum())
    assert rows < ROWS
    assert {len(at) for at, _ in asked.binned.values()} == {rows}
    assert {len(texts) for texts in asked.named.values()} == {rows}
    assert set(asked.weights) == {"age", "place", "ill"}
    assert sum(weight**2 for weight in asked.weights.values()) == pytest.approx(1)


def test_names_are_paid_for_in_every_round_and_after_everything_else(source: Path) -> None:
    plan = resolve(experiment(source)).plan
    aside = plan.phases[0].support
    assert isinstance(aside, Columns)
    # δ' = rounds · e^ε · probability: see the proof in docs/concepts/theory.md.
    assert 3 * math.exp(plan.epsilon + names_log_delta(plan)) == pytest.approx(aside.delta)


def test_where_counts_would_drown_in_noise_the_rows_are_read_and_the_certificate_says_so(
    source: Path, tmp_path: Path
) -> None:
    assert resolve(experiment(source, 0.3)).experiment.data.statistics == "rows"
    assert resolve(experiment(source, 8.0, statistics="rows")).plan.counts == 0
    directory = run(source, tmp_path / "run", statistics="rows")
    sentences = load_certificate(directory / "certificate.json").not_covered
    assert any("cuts (quantiles)" in sentence and "read off" in sentence for sentence in sentences)
    assert not (directory / "statistics.json").exists()


def test_columns_that_a_schema_declares_are_not_counted(source: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(
        '[target]\nname = "ill"\nkind = "binary"\nclasses = ["no", "yes"]\n'
        '[columns.age]\ntype = "number"\nlow = 0\nhigh = 120\n'
        '[columns.place]\ntype = "category"\nvalues = ["North", "South", "East"]\n'
        '[columns.member]\ntype = "category"\nvalues = ["0", "1"]\n'
    )
    job = resolve(experiment(source, schema=str(schema)))
    assert job.plan.counts == 0
    assert job.problem.table is None


def test_units_of_several_rows_are_not_counted_by_row(source: Path) -> None:
    with pytest.raises(ArgumentError, match="units of one row"):
        resolve(experiment(source, statistics="private", unit="member"))


def test_a_run_in_memory_pays_for_counts_too(source: Path) -> None:
    job = resolve(experiment(source))
    outcome = run_job(job, in_memory=True, progress=False)
    assert outcome.result.finished
    assert outcome.result.epsilon == pytest.approx(job.plan.spent())


def test_a_plan_that_counts_is_not_trained_without_its_counts(source: Path) -> None:
    job = resolve(experiment(source))
    encoded = job.problem.encoded()
    with pytest.raises(TacitError, match="begins with counts"):
        run_job(Job(replace(job.experiment), encoded, job.plan), in_memory=True, progress=False)


@pytest.mark.parametrize("codes", [2, 3])
def test_what_a_run_keeps_on_disk_does_not_tell_what_looks_odd_in_its_rows(
    tmp_path: Path, codes: int
) -> None:
    """Not even whether something does: of two rows that look alike, a third one makes a code."""
    rng = np.random.default_rng(2)
    age = rng.integers(18, 90, 400)
    age[:codes] = 99999
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["age {0}", "ill"])
        rows.writerows(zip(age, np.where(rng.random(400) < 0.5, "yes", "no"), strict=True))
    schema = tmp_path / "schema.toml"
    schema.write_text(
        '[target]\nname = "ill"\nkind = "binary"\nclasses = ["no", "yes"]\n\n'
        '[columns."age {0}"]\ntype = "number"\nlow = 0\nhigh = 120\n',
        encoding="utf-8",
    )
    asked = experiment(tmp_path / "t.csv", schema=str(schema), statistics="rows")
    asked = replace(
        asked, data=replace(asked.data, target=None), training=TrainingConfig(epochs=1.0, batch_size=100)
    )
    found = run_job(asked, tmp_path / "run", progress=False)
    warned = [warning for warning in found.warnings if "'age {0}' holds 99999 far from all" in warning]
    assert len(warned) == (codes == 3)
    for file in (tmp_path / "run").iterdir():
        if file.suffix != ".safetensors":
            assert "99999 " not in file.read_text(encoding="utf-8"), file
    stored = json.loads((tmp_path / "run" / "result.json").read_text())["warnings"]
    assert stored == [warning for warning in found.warnings if warning not in warned]
    assert not any("age {0}" in warning for warning in stored)
