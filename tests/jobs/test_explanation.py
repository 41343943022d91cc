"""What a table's model says by column: the right columns, the right amounts, the right noise, and no rows."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tacit.data import read_table
from tacit.jobs.diagnosis import diagnose
from tacit.jobs.explanation import MISSING, ColumnShape, Explanation
from tacit.jobs.run import run_job
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models import build
from tacit.models.config import ModelConfig
from tacit.runs.layout import MODEL_FILE, SCHEMA_FILE
from tacit.tensors import read_tensors

ROWS = 1500


def table(path: Path, signal: float = 3.0, kind: str = "binary") -> Path:
    """The answer depends on ``dose`` and ``ward``; ``noise`` and ``day`` say nothing, and ``note`` holds words."""
    rng = random.Random(4)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["dose", "ward", "noise", "day", "y"])
        for _ in range(ROWS):
            dose, ward, noise = rng.uniform(0, 10), rng.choice("ABC"), rng.gauss(0, 1)
            score = signal * ((dose - 5) / 3 + (ward == "B") - (ward == "C"))
            day = f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            answer: object = int(rng.random() < 1 / (1 + math.exp(-score)))
            if kind == "regression":
                answer = round(100 + 20 * score + rng.gauss(0, 5), 3)
            elif kind == "multiclass":
                answer = ("low", "middle", "high")[int(score > -1) + int(score > 1)]
            out.writerow([round(dose, 3) if rng.random() < 0.95 else "", ward, round(noise, 3), day, answer])
    return path


def explained(
    source: Path,
    place: Path,
    *,
    model: str = "additive",
    method: str = "dp-sgd",
    seed: int = 0,
    epsilon: float = 30.0,
    statistics: str | None = None,
    **options: object,
) -> Explanation:
    experiment = Experiment(
        data=DataConfig(str(source), target="y", statistics=statistics),  # type: ignore[arg-type]
        model=ModelConfig(model),
        method=MethodConfig(method, **({"active_ratio": "soft"} if method == "tp-topk" else {})),
        privacy=PrivacyConfig(epsilon=epsilon, accountant="rdp"),
        training=replace(TrainingConfig(seed=seed, batch_size=100, epochs=4.0), **options),  # type: ignore[arg-type]
    )
    run_job(experiment, place, progress=False)
    found = diagnose(place).explanation
    assert found is not None
    return found


def of(found: Explanation, name: str) -> ColumnShape:
    return next(shape for shape in found.columns if shape.column == name)


@pytest.mark.parametrize("model", ["additive", "logistic"])
def test_columns_that_matter_come_first_with_the_direction_they_have(tmp_path: Path, model: str) -> None:
    found = explained(table(tmp_path / "t.csv"), tmp_path / "run", model=model)
    assert found.answer == "log-odds of y = 1"
    assert [shape.column for shape in found.columns][:2] == ["dose", "ward"]
    dose, ward = of(found, "dose"), of(found, "ward")
    assert dose.clear
    assert not of(found, "noise").clear
    assert dose.kind == "number"
    assert dose.points[-1] == MISSING
    assert dose.effects[0][0] < 0 < dose.effects[0][-2]
    effect = dict(zip(ward.points, ward.effects[0], strict=True))
    assert effect["B"] > effect["A"] > effect["C"]
    assert of(found, "day").kind == "date"


@pytest.mark.parametrize("model", ["additive", "logistic"])
def test_differences_of_effects_are_differences_of_the_model_s_answers(tmp_path: Path, model: str) -> None:
    """Where a row has the length that is assumed: every column known, so that each has norm one or nearly."""
    source = table(tmp_path / "t.csv")
    found = explained(source, tmp_path / "run", model=model)
    task = read_table(source, schema=tmp_path / "run" / SCHEMA_FILE)
    network = build(model, task)
    network.load_state_dict(read_tensors(tmp_path / "run" / MODEL_FILE)[0])
    x = task.held_out.tensors[0]  # type: ignore[attr-defined]
    wards = [task.features.index(f"ward = {ward}") for ward in "ABC"]
    known = x[x[:, task.features.index("dose missing")] == 0].repeat(3, 1, 1)
    for place, ward in enumerate(wards):
        known[place][:, wards] = 0
        known[place][:, ward] = 1
    with torch.no_grad():
        answers = torch.stack([network(rows).flatten() for rows in known]).mean(1)
    effects = dict(zip(of(found, "ward").points, of(found, "ward").effects[0], strict=True))
    real = float(answers[1] - answers[2])
    assert effects["B"] - effects["C"] == pytest.approx(real, rel=1e-5 if model == "logistic" else 0.3)


def test_effects_on_numbers_are_in_units_of_the_target(tmp_path: Path) -> None:
    found = explained(table(tmp_path / "t.csv", kind="regression"), tmp_path / "run", epochs=20.0)
    assert (found.answer, found.outputs) == ("y", ("y",))
    effects = of(found, "dose").effects[0]
    assert 20 < effects[-2] - effects[0] < 400, "the truth is 200"


def test_several_classes_have_an_effect_each(tmp_path: Path) -> None:
    found = explained(table(tmp_path / "t.csv", kind="multiclass"), tmp_path / "run")
    assert len(found.outputs) == 3
    high = found.outputs.index("high")
    dose = of(found, "dose")
    assert dose.effects[high][0] < dose.effects[high][-2]
    assert dose.deviations is not None
    assert len(dose.deviations) == 3


@pytest.mark.parametrize(
    ("momentum", "schedule", "method"),
    [(0.0, "constant", "dp-sgd"), (0.9, "linear", "dp-sgd"), (0.9, "linear", "tp-topk")],
)
def test_bands_have_the_width_that_noise_gives_weights(
    tmp_path: Path, momentum: float, schedule: str, method: str
) -> None:
    """At such an ε effects are noise alone, and in units of their band they are near one."""
    source = table(tmp_path / "t.csv", signal=0.0)
    squares = []
    for seed in range(6):
        found = explained(
            source,
            tmp_path / str(seed),
            seed=seed,
            epsilon=0.05,
            method=method,
            momentum=momentum,
            schedule=schedule,
            learning_rate=0.1,
        )
        for shape in found.columns:
            assert shape.noise is not None
            squares.append((shape.importance / shape.noise) ** 2)
    assert 0.5 < sum(squares) / len(squares) < 1.5


def test_releases_that_measured_columns_are_no_noise_in_the_weights(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv")
    rows = explained(source, tmp_path / "rows", statistics="rows")
    measured = explained(source, tmp_path / "measured", statistics="private")
    one, other = of(rows, "ward").noise, of(measured, "ward").noise
    assert one is not None
    assert other == pytest.approx(one, rel=0.2), "measuring takes a little of the budget"


def test_without_plain_sgd_the_noise_is_not_known(tmp_path: Path) -> None:
    found = explained(table(tmp_path / "t.csv"), tmp_path / "run", optimizer="adam")
    assert {shape.noise for shape in found.columns} == {None}
    assert {shape.deviations for shape in found.columns} == {None}


def test_other_models_and_unfinished_runs_have_no_explanation(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv")
    explained(source, tmp_path / "run")
    (tmp_path / "run" / MODEL_FILE).unlink()
    assert diagnose(tmp_path / "run").explanation is None
    experiment = Experiment(
        data=DataConfig(str(source), target="y"),
        model=ModelConfig("mlp"),
        method=MethodConfig("dp-sgd"),
        privacy=PrivacyConfig(epsilon=8.0, accountant="rdp"),
        training=TrainingConfig(seed=0, batch_size=200, epochs=1.0),
    )
    run_job(experiment, tmp_path / "mlp", progress=False)
    assert diagnose(tmp_path / "mlp").explanation is None


def test_no_row_is_needed(tmp_path: Path) -> None:
    """The data may be gone, and nothing of it is in the explanation but what the schema says."""
    source = table(tmp_path / "t.csv")
    explained(source, tmp_path / "run")
    source.unlink()
    assert diagnose(tmp_path / "run").explanation is not None
