from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.jobs import comparison
from tacit.jobs.comparison import Cell, CellResult
from tacit.jobs.settings import DataConfig, Experiment, TrainingConfig
from tacit_papers.engine.contest import TUNING_SEED, VALIDATION, Contestant, Meter, contest

# On the validation part the second rate is best; on the test data the third would be.
VALIDATED = {1.0: 0.6, 2.0: 0.8, 4.0: math.nan}
TESTED = {1.0: 0.5, 2.0: 0.7, 4.0: 0.9}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    cells: list[Cell] = []

    def run_cell(cell: Cell) -> CellResult:
        cells.append(cell)
        rate = cell.experiment.training.learning_rate or 0.0
        table = VALIDATED if cell.experiment.data.validation is not None else TESTED
        measured = {"accuracy": table[rate] + 0.001 * cell.seed * (cell.seed != TUNING_SEED)}
        return CellResult(cell.method, cell.epsilon, cell.seed, measured, 5, 10, 1.0, 0.5)

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    return cells


def contestants() -> list[Contestant]:
    base = Experiment(data=DataConfig("digits"), training=TrainingConfig(learning_rate=9.0))
    return [
        Contestant("a", base, (1.0, 2.0, 4.0)),
        Contestant("b", replace(base, data=DataConfig("mnist")), (4.0,)),
    ]


def run(out: Path, seeds: int = 2) -> list[object]:
    with Meter(shown=False) as meter:
        return list(contest("t", contestants(), "accuracy", seeds=seeds, out=out, workers=1, meter=meter))


def test_rates_are_chosen_on_the_validation_part_and_the_test_data_is_measured_once_per_seed(
    ran: list[Cell], tmp_path: Path
) -> None:
    first, second = run(tmp_path)
    assert first.rate == 2.0  # type: ignore[attr-defined]
    assert first.values("accuracy") == (0.7, 0.701)  # type: ignore[attr-defined]
    assert second.rate == 4.0  # type: ignore[attr-defined]
    assert second.tuning == ()  # type: ignore[attr-defined]
    tests = [cell for cell in ran if cell.experiment.data.validation is None]
    assert [(cell.experiment.training.learning_rate, cell.seed) for cell in tests] == [
        (2.0, 0),
        (2.0, 1),
        (4.0, 0),
        (4.0, 1),
    ]
    tuning = [cell for cell in ran if cell not in tests]
    assert {(c.experiment.data.validation, c.seed) for c in tuning} == {(VALIDATION, TUNING_SEED)}
    assert first.processor_seconds == pytest.approx(0.5 * 5)  # type: ignore[attr-defined]


def test_an_interrupted_contest_goes_on_where_it_was(ran: list[Cell], tmp_path: Path) -> None:
    whole = repr(run(tmp_path))  # a rate that came to nothing is not a number, and equals nothing
    count = len(ran)
    assert len(list(tmp_path.glob("*.json"))) == count
    assert repr(run(tmp_path)) == whole
    assert len(ran) == count
    next(tmp_path.glob("*.json")).unlink()
    assert repr(run(tmp_path)) == whole
    assert len(ran) == count + 1
