"""The bar of a run: whatever is measured, a narrow terminal shows the phase, the steps and the time."""

from __future__ import annotations

import pytest

from tacit.training.fitting import ProgressBar

MEASURED = {
    "loss": 0.16652,
    "auc": 0.92321,
    "balanced_accuracy": 0.5,
    "accuracy_per_unit": 0.81,
    "recall": 1.0,
}


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("measured", [{}, MEASURED])
def test_figures_leave_room_for_steps_and_time(
    columns: int,
    measured: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with ProgressBar(1300, 0, shown=True) as bar:
        bar.step(1120, "warm-up")
        bar.report(2.992, 786_435, measured)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warm-up ")
    assert "1120/1300" in line
    assert "ε 2.992" in line
    assert ":" in line  # the time
    assert len(line) <= columns
    assert (columns < 200) == ("…" in line) or not measured
