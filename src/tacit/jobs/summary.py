"""Comparisons summed up: paired differences, the table, the file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import ArgumentError, FileError
from tacit.files import read_json
from tacit.jobs.comparison import CellResult
from tacit.runs.layout import COMPARISON_FILE as COMPARISON_FILE


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter is not a number for a single seed."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + (f" ± {self.deviation:.4f}" if math.isfinite(self.deviation) else "")


@dataclass(frozen=True)
class Row:
    """One method at one ε. ``difference`` is to the first method at the same ε, seed by seed.

    Its ``deviation`` is the standard error of that mean difference.
    """

    method: str
    epsilon: float
    seeds: int
    measures: dict[str, Spread]
    difference: Spread | None
    active: float
    coordinates: int
    seconds: float


def summarise(results: Sequence[CellResult], measure: str) -> list[Row]:
    """One row per method and ε; ``measure`` is what differences are taken of."""
    groups: dict[tuple[str, float], list[CellResult]] = {}
    for result in results:
        if measure not in result.held_out:
            raise ArgumentError(f"There is no measure {measure!r}; there are {', '.join(result.held_out)}.")
        groups.setdefault((result.method, result.epsilon), []).append(result)
    first = results[0].method
    rows = []
    for (method, epsilon), group in groups.items():
        base = {r.seed: r.held_out[measure] for r in groups.get((first, epsilon), [])}
        pairs = [r.held_out[measure] - base[r.seed] for r in group if r.seed in base]
        rows.append(
            Row(
                method,
                epsilon,
                len(group),
                {name: _spread([r.held_out[name] for r in group]) for name in group[0].held_out},
                paired(pairs) if pairs and method != first else None,
                float(np.mean([r.active for r in group])),
                group[0].coordinates,
                float(np.mean([r.seconds for r in group])),
            )
        )
    return rows


def paired(differences: Sequence[float]) -> Spread:
    """Mean of paired differences and its standard error."""
    spread = _spread(differences)
    return Spread(spread.mean, spread.deviation / math.sqrt(len(differences)))


def _spread(values: Sequence[float]) -> Spread:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Spread(float(np.mean(values)), deviation)


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. ``paired_with`` is the method that differences are taken to."""

    data: str
    measure: str
    paired_with: str
    rows: tuple[Row, ...]


def comparison_record(
    data: str, measure: str, rows: Sequence[Row], results: Sequence[CellResult]
) -> dict[str, Any]:
    """The content of the file. Seeded runs are never for release."""
    return {
        "data": data,
        "measure": measure,
        "paired_with": results[0].method,
        "for_release": False,
        "rows": [dataclasses.asdict(row) for row in rows],
        "runs": [dataclasses.asdict(result) for result in results],
    }


def read_comparison(path: Path) -> Comparison:
    """Read what ``tacit compare`` wrote."""
    record = read_json(path)
    try:
        found = Comparison(
            str(record["data"]),
            str(record["measure"]),
            str(record["paired_with"]),
            tuple(_row(row) for row in record["rows"]),
        )
        if not found.rows or not all(found.measure in row.measures for row in found.rows):
            raise ValueError(f"it has no row, or one without {found.measure!r}")
        return found
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(f"{path} is not a comparison of this version of Tacit: {error!r}.") from error


def _row(record: Mapping[str, Any]) -> Row:
    difference = record["difference"]
    row = Row(
        str(record["method"]),
        math.inf if record["epsilon"] == "inf" else float(record["epsilon"]),
        int(record["seeds"]),
        {str(name): _read_spread(spread) for name, spread in record["measures"].items()},
        None if difference is None else _read_spread(difference),
        float(record["active"]),
        int(record["coordinates"]),
        float(record["seconds"]),
    )
    if not (row.epsilon > 0 and row.seeds > 0 and 0 <= row.active <= row.coordinates and row.coordinates > 0):
        raise ValueError(f"the row of {row.method!r} at epsilon {row.epsilon:g} cannot be")
    return row


def _read_spread(record: Mapping[str, float | None]) -> Spread:
    """JSON has no word for what is not a number; it becomes null."""
    mean, deviation = (
        math.nan if (figure := record[name]) is None else float(figure) for name in ("mean", "deviation")
    )
    if math.isinf(mean) or math.isinf(deviation) or deviation < 0:
        raise ValueError("a mean is infinite, or a deviation negative")
    return Spread(mean, deviation)
