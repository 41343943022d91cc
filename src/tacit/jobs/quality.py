"""How good a model was on held-out data, with 95 % intervals: the figures that people ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import is_number
from tacit.files import read_json
from tacit.jobs.held_out import HeldOutCounts, HeldOutErrors, read_errors, read_held_out
from tacit.runs.layout import RESULT_FILE

_Z = 1.959964


@dataclass(frozen=True)
class Figure:
    """A measure on ``rows`` held-out rows and its 95 % interval; the interval is of the rows, not of the training."""

    name: str
    value: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        return f"{self.value:.4g} (95 % interval {self.low:.4g} to {self.high:.4g})"


def quality_of(run_dir: Path, measured: Mapping[str, Any] | None = None) -> list[Figure]:
    """The figures of a finished run; none where nothing was held out.

    ``measured`` are its measures, where they are not to be read from its result.
    """
    errors = read_errors(run_dir)
    if errors is not None:
        return of_errors(errors)
    counts = read_held_out(run_dir)
    if counts is None:
        return []
    if measured is None:
        path = run_dir / RESULT_FILE
        record = read_json(path) if path.is_file() else {}
        measured = record.get("measured") if isinstance(record, Mapping) else None
    return of_counts(counts, measured if isinstance(measured, Mapping) else {})


def of_counts(counts: HeldOutCounts, measured: Mapping[str, Any]) -> list[Figure]:
    """Accuracy, the recall of every class, and for two classes AUC, precision and lift."""
    confusion = counts.confusion
    total = sum(map(sum, confusion))
    if not total:
        return []
    right = sum(confusion[place][place] for place in range(len(confusion)))
    figures = []
    sizes = [sum(row) for row in confusion]
    auc = measured.get("auc")
    if len(counts.classes) == 2 and is_number(auc) and all(sizes):
        figures.append(Figure("AUC", float(auc), *auc_interval(float(auc), sizes[1], sizes[0]), total))
    figures.append(share("accuracy", right, total))
    figures += [
        share(f"recall of {name}", confusion[place][place], sizes[place])
        for place, name in enumerate(counts.classes)
        if sizes[place]
    ]
    named = sum(row[-1] for row in confusion)
    if len(counts.classes) == 2 and named and sizes[1]:
        precision = share(f"precision of {counts.classes[1]}", confusion[1][1], named)
        base = sizes[1] / total
        figures += [
            precision,
            Figure(
                f"lift of {counts.classes[1]}",
                precision.value / base,
                precision.low / base,
                precision.high / base,
                named,
            ),
        ]
    return figures


def of_errors(errors: HeldOutErrors) -> list[Figure]:
    """R², and the root mean squared and the mean absolute error in the target's own unit."""
    rows = errors.rows
    mean = errors.squared
    reach = _Z * errors.squared_deviation / math.sqrt(rows)
    figures = [
        Figure(
            "RMSE",
            math.sqrt(mean),
            math.sqrt(max(0.0, mean - reach)),
            math.sqrt(mean + reach),
            rows,
        ),
        Figure(
            "MAE",
            errors.absolute,
            max(0.0, errors.absolute - _Z * errors.absolute_deviation / math.sqrt(rows)),
            errors.absolute + _Z * errors.absolute_deviation / math.sqrt(rows),
            rows,
        ),
    ]
    if errors.variance > 0:
        low, high = (1 - end / errors.variance for end in (mean + reach, max(0.0, mean - reach)))
        figures.insert(0, Figure("R²", 1 - mean / errors.variance, low, high, rows))
    return figures


def share(name: str, hits: int, total: int) -> Figure:
    """A share of rows with its Wilson interval."""
    return Figure(name, hits / total, *wilson(hits, total), total)


def wilson(hits: int, total: int, z: float = _Z) -> tuple[float, float]:
    """The 95 % Wilson interval of a share; the whole range where nothing was counted."""
    if not total:
        return 0.0, 1.0
    rate = hits / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    reach = z / (1 + z * z / total) * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    # The ends are exact where all or nothing was hit, and rounding would show 3e-17.
    low = max(0.0, centre - reach) if hits else 0.0
    return low, min(1.0, centre + reach) if hits < total else 1.0


def auc_interval(auc: float, positives: int, negatives: int) -> tuple[float, float]:
    """The 95 % interval of an AUC by the variance of Hanley and McNeil (1982).

    Where no pair is out of order that variance is 0, and what so few rows can show decides.
    """
    if auc in (0.0, 1.0):
        fewer = min(positives, negatives)
        return wilson(round(auc * fewer), fewer)
    both, neither = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = (
        auc * (1 - auc) + (positives - 1) * (both - auc * auc) + (negatives - 1) * (neither - auc * auc)
    ) / (positives * negatives)
    reach = _Z * math.sqrt(max(0.0, variance))
    return max(0.0, auc - reach), min(1.0, auc + reach)
