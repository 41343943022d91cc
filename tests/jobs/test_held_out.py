from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tacit.errors import FileError
from tacit.jobs.held_out import count_predictions, read_errors, read_held_out, sensitivity, specificity
from tacit.jobs.quality import quality_of
from tacit.jobs.run import run_job
from tacit.jobs.settings import DataConfig, Experiment, PrivacyConfig, TrainingConfig
from tacit.runs.layout import HELD_OUT_FILE


def test_counts_agree_with_the_measures_at_every_threshold() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(300, 1, generator=generator) * 3
    targets = (torch.rand(300, 1, generator=generator) < outputs.sigmoid()).float()
    found = count_predictions(outputs, targets, ("no", "yes"), threshold=-0.123)
    (tn, fp), (fn, tp) = found.confusion
    assert (tn + fp, fn + tp) == (int((targets == 0).sum()), int((targets == 1).sum()))
    by = found.thresholds
    assert by is not None
    assert by.used == -0.123
    assert by.used in by.logits
    assert list(by.logits) == sorted(by.logits)
    for logit, true, false in zip(by.logits, by.true_positives, by.false_positives, strict=True):
        assert true / (fn + tp) == pytest.approx(sensitivity(outputs, targets, logit))
        assert 1 - false / (tn + fp) == pytest.approx(specificity(outputs, targets, logit))
    at = by.logits.index(by.used)
    assert (by.true_positives[at], by.false_positives[at]) == (tp, fp)


def test_an_output_on_the_threshold_and_one_that_is_not_a_number_are_negative() -> None:
    outputs = torch.tensor([0.5, 0.5, math.nan, math.inf])
    found = count_predictions(outputs, torch.tensor([1, 0, 1, 1]), ("a", "b"), threshold=0.5)
    assert found.confusion == ((1, 0), (2, 1))
    assert found.thresholds is not None
    assert found.thresholds.true_positives[found.thresholds.logits.index(0.5)] == 1
    assert found.thresholds.true_positives[found.thresholds.logits.index(0.45)] == 2


def test_one_output_per_class() -> None:
    outputs = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    found = count_predictions(outputs, torch.tensor([0, 1, 2]), ("a", "b", "c"))
    assert found.confusion == ((1, 0, 0), (0, 1, 0), (0, 1, 0))
    assert found.thresholds is None
    two = count_predictions(outputs[:, :2], torch.tensor([0, 1, 0]), ("a", "b"))
    assert two.confusion == ((1, 1), (0, 1))
    assert two.thresholds is not None
    assert two.thresholds.used == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("held-out") / "run"
    experiment = Experiment(
        data=DataConfig("nhanes", prevalence=0.082),
        privacy=PrivacyConfig(accountant="rdp"),
        training=TrainingConfig(batch_size=512, epochs=1.0, seed=0, average=0.5),
    )
    assert run_job(experiment, path, progress=False).result.finished
    return path


def test_a_run_keeps_its_counts_and_no_single_row(run: Path) -> None:
    found = read_held_out(run)
    assert found is not None
    measured = json.loads((run / "result.json").read_text())["measured"]
    (tn, fp), (fn, tp) = found.confusion
    assert tp / (tp + fn) == pytest.approx(measured["sensitivity"])
    assert tn / (tn + fp) == pytest.approx(measured["specificity"]), "the averaged weights are measured"
    record = json.loads((run / HELD_OUT_FILE).read_text())
    assert set(record) == {"format", "classes", "confusion", "thresholds"}
    assert set(record["thresholds"]) == {"used", "logits", "true_positives", "false_positives"}
    assert len(record["thresholds"]["logits"]) == 282, "the grid is public, whatever the outputs are"


def test_a_resumed_run_keeps_them_too(run: Path) -> None:
    before = (run / HELD_OUT_FILE).read_text()
    (run / HELD_OUT_FILE).unlink()
    assert run_job(run, progress=False).result.finished
    assert (run / HELD_OUT_FILE).read_text() == before


def test_counts_that_do_not_add_up_are_refused(run: Path, tmp_path: Path) -> None:
    assert read_held_out(tmp_path) is None
    plain = json.loads((run / HELD_OUT_FILE).read_text())
    by = plain["thresholds"]
    for change in (
        {"format": "other"},
        {"confusion": [[1, 2]]},
        {"confusion": [[1, 2], [3, 4]]},
        {"thresholds": {**by, "used": 0.01}},
        {"thresholds": {**by, "logits": by["logits"][1:]}},
        {"thresholds": {**by, "logits": by["logits"][::-1]}},
        {"classes": None},
    ):
        (tmp_path / HELD_OUT_FILE).write_text(json.dumps({**plain, **change}))
        with pytest.raises(FileError, match="does not hold counts"):
            read_held_out(tmp_path)


def test_regression_keeps_the_sizes_of_its_errors_in_the_unit_of_the_target(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 17},{i % 17 * 2 + i % 3}" for i in range(200))
    (tmp_path / "t.csv").write_text(f"x,y\n{rows}\n")
    experiment = Experiment(
        data=DataConfig(str(tmp_path / "t.csv"), target="y", kind="regression"),
        privacy=PrivacyConfig(accountant="rdp"),
        training=TrainingConfig(batch_size=50, epochs=2.0, seed=0),
    )
    assert run_job(experiment, tmp_path / "run", progress=False).result.finished
    errors = read_errors(tmp_path / "run")
    assert errors is not None
    assert read_held_out(tmp_path / "run") is None
    assert errors.absolute <= math.sqrt(errors.squared) < 60
    assert 50 < errors.variance < 150
    assert [figure.name for figure in quality_of(tmp_path / "run")] == ["R²", "RMSE", "MAE"]
