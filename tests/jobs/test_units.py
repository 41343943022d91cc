"""Jobs whose unit of privacy is a person with several rows: tables, texts and images."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.data.images import read_images
from tacit.data.read_table import read_table
from tacit.data.task import Task
from tacit.errors import ArgumentError, FileError
from tacit.jobs.audit import audit_data
from tacit.jobs.held_out import held_out_weights, measures, weighted_auc
from tacit.jobs.problem import load_problem
from tacit.jobs.run import reload, resolve, run_job
from tacit.jobs.settings import DataConfig, Experiment, PrivacyConfig, TrainingConfig
from tacit.runs import load_certificate, verify

PEOPLE = 120


def stays(tmp_path: Path, **columns: Any) -> Path:
    """People with one to five rows each."""
    rng = np.random.default_rng(4)
    owners = np.repeat(np.arange(PEOPLE), rng.integers(1, 6, PEOPLE))
    order = rng.permutation(len(owners))
    owners = owners[order]
    x = rng.normal(size=(len(owners), 2))
    y = x[:, 0] + 0.3 * rng.normal(size=len(owners)) > 0
    table = {
        "person": [f"p{owner}" for owner in owners],
        "a": x[:, 0].round(3),
        "b": x[:, 1].round(3),
        "sick": np.where(y, "yes", "no"),
    }
    table |= {name: make(owners) for name, make in columns.items()}
    path = tmp_path / "stays.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path


def experiment(path: Path, **data: Any) -> Experiment:
    return Experiment(
        data=DataConfig(str(path), target="sick", unit="person", **data),
        privacy=PrivacyConfig(epsilon=3.0),
        training=TrainingConfig(batch_size=16, epochs=2),
    )


def no_unit_on_both_sides(task: Task) -> None:
    assert task.units is not None
    assert task.held_out_units is not None
    assert not set(task.units) & set(task.held_out_units)
    assert len(task.units) == len(task.train)
    assert len(task.held_out_units) == len(task.held_out)


def test_a_table_is_trained_certified_resumed_and_verified_by_unit(tmp_path: Path) -> None:
    path = stays(tmp_path)
    job = resolve(experiment(path, rows_per_unit=3))
    task = job.problem.task
    assert task is not None
    no_unit_on_both_sides(task)
    assert job.problem.examples == job.plan.examples == len(set(task.units.tolist())) < len(task.train)
    assert job.plan.grouped
    assert not any("person" in name for name in task.features)
    outcome = run_job(job, tmp_path / "run", progress=False)
    assert {"auc", "auc_per_unit", "balanced_accuracy_per_unit"} <= set(outcome.result.measured)
    certificate = load_certificate(tmp_path / "run" / "certificate.json")
    assert "everything in the training data that belongs to one value of 'person'" in certificate.statement
    assert any(
        "The number of units (different values of 'person')" in item for item in certificate.not_covered
    )
    assert not any("number of training rows" in item for item in certificate.not_covered)
    assert verify(tmp_path / "run").agrees
    again, problem = reload(tmp_path / "run")
    assert again == job.experiment
    assert (problem.units == job.problem.units).all()


def test_no_file_of_a_run_tells_how_many_rows_there_were(tmp_path: Path) -> None:
    """One unit may have any number of rows; only the number of units is public."""
    job = resolve(experiment(stays(tmp_path)))
    run_job(job, tmp_path / "run", progress=False)
    rows = str(len(job.problem.train))
    for file in (tmp_path / "run").iterdir():
        if file.suffix in (".json", ".txt") and file.name not in ("held_out.json", "result.json"):
            assert rows not in file.read_text().replace(".", " ").replace(",", " ").split(), file


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda owners: ["same"] * len(owners), "has the same value everywhere"),
        (lambda owners: np.arange(len(owners)), "has a different value for every row"),
        (lambda owners: ["", *owners[1:]], "is missing in .*about line 2"),
        (lambda owners: ["?", *owners[1:]], "is missing in"),
        (lambda owners: owners / 4, "real numbers such as"),
        (lambda owners: owners.astype(float), "real numbers such as"),
        (lambda owners: ["007", "7", *owners[2:]], "'007' and '7', which may be one person"),
        (lambda owners: ["Ann", "ann ", *owners[2:]], "'Ann' and 'ann', which may be one person"),
        (lambda owners: ["Jos\u00e9", "Jose\u0301", *owners[2:]], "which may be one person"),
        (lambda owners: ["x", "9001", "9001.0", *owners[3:]], "'9001' and '9001.0', which may be one person"),
        (lambda owners: ["x", "1000", "1e3", *owners[3:]], "'1000' and '1e3', which may be one person"),
        (lambda owners: ["x", "12.50", "+12.5", *owners[3:]], "which may be one person"),
    ],
)
def test_a_wrong_unit_column_is_a_sentence(tmp_path: Path, make: Any, message: str) -> None:
    path = stays(tmp_path, odd=make)
    with pytest.raises(FileError, match=message):
        read_table(path, "sick", unit="odd")


def test_a_unit_column_that_is_not_there_or_is_the_target_is_a_sentence(tmp_path: Path) -> None:
    path = stays(tmp_path)
    with pytest.raises(ArgumentError, match="has no column 'patient'"):
        read_table(path, "sick", unit="patient")
    with pytest.raises(ArgumentError, match="cannot be the unit of privacy"):
        read_table(path, "sick", unit="sick")
    with pytest.raises(ArgumentError, match="unit decides the split"):
        read_table(path, "sick", unit="person", split_by="a")
    with pytest.raises(ArgumentError, match="unit is for tables, texts and image folders"):
        load_problem(DataConfig("tests.jobs.test_units:PEOPLE", unit="person"))
    with pytest.raises(ArgumentError, match="unit is for tables, texts and image folders"):
        load_problem(DataConfig("nhanes", unit="person"))


def test_the_split_never_puts_one_unit_on_both_sides_whatever_the_share(tmp_path: Path) -> None:
    path = stays(tmp_path)
    for share in (0.1, 0.5, 0.8):
        no_unit_on_both_sides(read_table(path, "sick", unit="person", held_out=share))


def test_a_task_that_puts_one_unit_on_both_sides_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    task = read_table(stays(tmp_path), "sick", unit="person")
    with pytest.raises(ArgumentError, match="A unit has rows to train on and held-out rows"):
        replace(task, held_out_units=task.held_out_units * 0 + task.units[0])


def images(tmp_path: Path) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        folder = tmp_path / "images" / label
        folder.mkdir(parents=True)
        for person in range(40):
            for shot in range(1 + person % 3):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"owner{person}_{shot}.png")
    return tmp_path / "images"


def test_images_are_grouped_by_a_pattern_or_by_a_table(tmp_path: Path) -> None:
    root = images(tmp_path)
    by_pattern = read_images(root, size=8, unit=r"owner(\d+)_", held_out=0.3)
    no_unit_on_both_sides(by_pattern)
    assert len({*by_pattern.units.tolist(), *by_pattern.held_out_units.tolist()}) == 40
    table = tmp_path / "owners.csv"
    files = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    lines = [f"{file},{file.split('owner')[1].split('_')[0]}" for file in files]
    table.write_text("\n".join(["file,unit", *lines]))
    by_table = read_images(root, size=8, unit=str(table), held_out=0.3)
    assert (by_table.units == by_pattern.units).all()
    table.write_text("\n".join(["file,unit", *lines[1:]]))
    with pytest.raises(FileError, match="does not say whose image"):
        read_images(root, size=8, unit=str(table))
    with pytest.raises(FileError, match="finds no unit in"):
        read_images(root, size=8, unit=r"holder(\d+)")
    with pytest.raises(ArgumentError, match="neither a file nor a pattern"):
        read_images(root, size=8, unit="owner(")
    with pytest.raises(FileError, match="the same value everywhere"):
        read_images(root, size=8, unit="owner")


def test_a_validation_part_keeps_units_together(tmp_path: Path) -> None:
    config = DataConfig(
        str(images(tmp_path)), unit=r"owner(\d+)_", image_size=8, held_out=0.2, validation=0.4
    )
    task = load_problem(config).task
    assert task is not None
    no_unit_on_both_sides(task)


def test_a_measure_per_unit_counts_every_unit_once() -> None:
    outputs = torch.tensor([3.0, 2.0, 2.0, 1.0, 0.0])
    targets = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])
    weights = torch.tensor([1.0, 1.0, 0.5, 0.5, 1.0], dtype=torch.float64)
    pairs = [
        (w * v, 1.0 if a > b else 0.5 if a == b else 0.0)
        for a, t, w in zip(outputs, targets, weights, strict=True)
        for b, s, v in zip(outputs, targets, weights, strict=True)
        if t > s
    ]
    expected = sum(float(w) * win for w, win in pairs) / sum(float(w) for w, _ in pairs)
    assert weighted_auc(outputs, targets, weights) == pytest.approx(expected, rel=1e-12)
    found = measures("binary", None, weights)
    assert found["auc_per_unit"](outputs, targets) == pytest.approx(expected)
    ones = torch.ones(5, dtype=torch.float64)
    same = measures("binary", None, ones)
    assert same["auc_per_unit"](outputs, targets) == pytest.approx(same["auc"](outputs, targets))
    assert same["balanced_accuracy_per_unit"](outputs - 1.5, targets) == pytest.approx(
        same["balanced_accuracy"](outputs - 1.5, targets)
    )


def test_weights_of_held_out_rows_add_up_to_one_per_unit(tmp_path: Path) -> None:
    problem = load_problem(DataConfig(str(stays(tmp_path)), target="sick", unit="person"))
    weights = held_out_weights(problem)
    assert weights is not None
    assert float(weights.sum()) == pytest.approx(len(set(problem.task.held_out_units.tolist())))
    assert held_out_weights(load_problem(DataConfig(str(stays(tmp_path)), target="sick"))) is None


def test_an_audit_plants_canaries_that_are_units(tmp_path: Path) -> None:
    job = resolve(experiment(stays(tmp_path)))
    found = audit_data(job.experiment, job.problem, canaries=40, confidence=0.9, seed=1)
    assert found.epsilon_lower < found.epsilon_claimed
