"""From single runs to the map: tune every method's learning rate, then compare on seeds of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from tacit_papers.sparsity_map.cells import Cell, Outcome, run_cells
from tacit_papers.sparsity_map.grid import TUNING_SEEDS, Arm, Setting

CONFIDENCE = 0.95
Grid = Sequence[tuple[Setting, Sequence[Arm]]]


@dataclass(frozen=True)
class Difference:
    """A mean paired difference in points, its confidence interval over seeds, and the p-value of "none"."""

    mean: float
    low: float
    high: float
    p: float


def tuning_cells(grid: Grid) -> list[Cell]:
    """Every learning rate of every method on the tuning seeds."""
    return [
        Cell(setting, arm, rate, seed)
        for setting, arms in grid
        for arm in arms
        for rate in setting.rates
        for seed in TUNING_SEEDS
    ]


def best_rate(setting: Setting, arm: Arm, found: dict[Cell, Outcome]) -> float:
    """The rate with the best mean on the tuning part; the smaller of equals."""

    def mean(rate: float) -> float:
        return float(np.mean([found[Cell(setting, arm, rate, seed)].tuning for seed in TUNING_SEEDS]))

    return max(setting.rates, key=mean)


def make_map(
    grid: Grid,
    folder: Path,
    *,
    workers: int,
    data_dir: str | None,
    done: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run the grid and return its record: per setting and method the tuned rate and every figure."""
    tuned = run_cells(tuning_cells(grid), folder, workers=workers, data_dir=data_dir, done=done)
    rates = {(setting, arm): best_rate(setting, arm, tuned) for setting, arms in grid for arm in arms}
    final = [
        Cell(setting, arm, rate, seed)
        for (setting, arm), rate in rates.items()
        for seed in range(setting.seeds)
    ]
    found = run_cells(final, folder, workers=workers, data_dir=data_dir, done=done)
    return {
        "settings": [
            _setting_record(
                setting, [_arm_record(setting, arm, rates[setting, arm], tuned, found) for arm in arms]
            )
            for setting, arms in grid
        ]
    }


def runs_of(grid: Grid) -> int:
    """How many runs a grid takes."""
    return sum(len(arms) * (len(s.rates) * len(TUNING_SEEDS) + s.seeds) for s, arms in grid)


def _setting_record(setting: Setting, arms: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "part": setting.part,
        "name": setting.name,
        "data": setting.data,
        "model": setting.model,
        "coordinates": arms[0]["coordinates"],
        "epsilon": setting.epsilon,
        "examples": setting.examples,
        "batch": setting.batch,
        "steps": setting.steps,
        "rates": list(setting.rates),
        "methods": arms,
    }


def _arm_record(
    setting: Setting, arm: Arm, rate: float, tuned: dict[Cell, Outcome], found: dict[Cell, Outcome]
) -> dict[str, Any]:
    runs = [found[Cell(setting, arm, rate, seed)] for seed in range(setting.seeds)]
    return {
        "label": arm.label,
        "rate": rate,
        "tuning": [tuned[Cell(setting, arm, r, seed)].tuning for r in setting.rates for seed in TUNING_SEEDS],
        "test": [run.test for run in runs],
        "active": [run.active / run.coordinates for run in runs],
        "coordinates": runs[0].coordinates,
        "seconds": round(sum(run.seconds for run in runs) / len(runs), 2),
    }


def difference(method: Sequence[float], base: Sequence[float]) -> Difference:
    """Seed by seed, ``method`` − ``base`` in points, with Student's interval."""
    points = 100 * (np.asarray(method) - np.asarray(base))
    mean, count = float(points.mean()), len(points)
    error = float(points.std(ddof=1)) / count**0.5 if count > 1 else float("inf")
    if error == 0:
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    half = float(student.ppf(0.5 + CONFIDENCE / 2, count - 1)) * error if count > 1 else float("inf")
    p = float(2 * student.sf(abs(mean) / error, count - 1)) if count > 1 else 1.0
    return Difference(mean, mean - half, mean + half, p)


def holm(p_values: Sequence[float], level: float = 1 - CONFIDENCE) -> list[bool]:
    """Which of several differences are shown, with at most ``level`` chance of a single false one (Holm)."""
    order = np.argsort(p_values)
    shown = [False] * len(p_values)
    for place, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - place):
            break
        shown[index] = True
    return shown
