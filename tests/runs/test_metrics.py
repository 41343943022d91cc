"""Figures of a run on disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tacit import FileError
from tacit.runs import metrics
from tacit.runs.metrics import MetricsLog, read_metrics
from training.small import STEPS, data, plan, trainer


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_tensorboard", lambda directory: None)


def test_rows_are_on_disk_as_they_come_and_in_a_table_at_the_end(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, done=0)
    log.add({"step": 1, "epsilon": 0.5})
    assert read_metrics(tmp_path) == [{"step": 1, "epsilon": 0.5}]
    log.add({"step": 2, "epsilon": 0.7, "held_out_loss": 1.5})
    log.finish()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"step": "1", "epsilon": "0.5", "held_out_loss": ""},
        {"step": "2", "epsilon": "0.7", "held_out_loss": "1.5"},
    ]


def test_lost_and_torn_rows_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n[3]\n{"step": "4"}\n{"step": 5}\n{"step": 6, "epsi')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 5]
    log = MetricsLog(tmp_path, done=2)
    log.add({"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, done=0)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(FileError, match=r"metrics\.jsonl cannot be written"):
        log.add({"step": 1})


def test_a_run_reports_epsilon_support_and_held_out_figures(tmp_path: Path) -> None:
    run = trainer(plan("tp-topk", epsilon=3.0), run_dir=tmp_path, held_out=data(40))
    result = run.fit(progress=False)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["phase"] for row in rows] == ["warm-up"] * 6 + ["sparse"] * 14
    assert [row["active"] for row in rows] == [result.dimension] * 6 + [result.active] * 14
    epsilons = [row["epsilon"] for row in rows]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == result.epsilon <= 3.0
    assert all(row["signal_to_noise"] >= 0 for row in rows)
    assert rows[-1]["held_out_loss"] == result.measured["loss"]
    assert rows[-1]["held_out_accuracy"] == result.measured["accuracy"]
    assert result.measured == run.evaluate()


def test_a_run_without_noise_writes_json_that_everyone_can_read(tmp_path: Path) -> None:
    trainer(plan("dp-sgd"), run_dir=tmp_path).fit(progress=False)

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    rows = [
        json.loads(line, parse_constant=refuse)
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert {row["epsilon"] for row in rows} == {None}


def test_tensorboard_gets_the_numbers_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Board:
        def add_scalar(self, key: str, value: float, step: int) -> None:
            seen.append((key, value, step))

        def close(self) -> None:
            seen.append("closed")

    monkeypatch.setattr(metrics, "_tensorboard", lambda directory: Board())
    log = MetricsLog(tmp_path, done=0)
    log.add({"step": 3, "phase": "train", "epsilon": 0.5, "signal_to_noise": None})
    log.finish()
    assert seen == [("epsilon", 0.5, 3), "closed"]
