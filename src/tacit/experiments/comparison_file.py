"""A comparison as a file: what was compared on which data, one row per method and ε, and every run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import FileError
from tacit.experiments.comparison import CellResult
from tacit.experiments.summary import Row, Spread
from tacit.files import read_json

COMPARISON_FILE = "comparison.json"


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
        {str(name): _spread(spread) for name, spread in record["measures"].items()},
        None if difference is None else _spread(difference),
        float(record["active"]),
        int(record["coordinates"]),
        float(record["seconds"]),
    )
    if not (row.epsilon > 0 and row.seeds > 0 and 0 <= row.active <= row.coordinates and row.coordinates > 0):
        raise ValueError(f"the row of {row.method!r} at epsilon {row.epsilon:g} cannot be")
    return row


def _spread(record: Mapping[str, float | None]) -> Spread:
    """JSON has no word for what is not a number; it stands as null."""
    mean, deviation = (
        math.nan if (figure := record[name]) is None else float(figure) for name in ("mean", "deviation")
    )
    if math.isinf(mean) or math.isinf(deviation) or deviation < 0:
        raise ValueError("a mean is infinite, or a deviation negative")
    return Spread(mean, deviation)
