"""Single fits of the comparison: one file keeps them all, is written after every fit, and spares what it holds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.errors import FileError
from tacit.files import read_json, write_json
from tacit_papers.engine.setting import commit
from tacit_papers.tables.data import TABLES, features_of, split, table
from tacit_papers.tables.methods import METHODS, WIDE, auc_of, why_not_diffprivlib

FORMAT = "tacit-tables-1"
EPSILONS = (0.5, 1.0, 3.0, 8.0)


@dataclass(frozen=True)
class Cell:
    """One fit. Without privacy ``epsilon`` is 0."""

    table: str
    method: str
    epsilon: float
    seed: int


def cells_of(
    tables: Sequence[str], methods: Sequence[str], epsilons: Sequence[float], seeds: int
) -> list[Cell]:
    """All fits, table by table from the last, which is small, and seed by seed."""
    return [
        Cell(table, method, epsilon, seed)
        for table in reversed(tables)
        for seed in range(seeds)
        for method in methods
        for epsilon in (epsilons if METHODS[method].private else (0.0,))
    ]


def load_record(path: Path) -> dict[str, Any]:
    """What was recorded so far."""
    if not path.exists():
        return {"format": FORMAT, "tables": {}, "cells": []}
    record: dict[str, Any] = read_json(path)
    if record.get("format") != FORMAT:
        raise FileError(f"{path} holds no comparison of tables; choose another --out.")
    return record


def key(entry: dict[str, Any]) -> Cell:
    """The cell of a recorded fit."""
    return Cell(entry["table"], entry["method"], entry["epsilon"], entry["seed"])


def run_cells(
    cells: Sequence[Cell],
    path: Path,
    *,
    data_dir: str | None,
    again: Sequence[str] = (),
    done: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run what ``path`` does not hold yet, and all fits of the methods ``again``; return the record."""
    record = load_record(path)
    record["cells"] = [entry for entry in record["cells"] if entry["method"] not in again]
    reason = why_not_diffprivlib()
    record["without_diffprivlib"] = reason
    held = {key(entry) for entry in record["cells"]}
    for cell in cells:
        skipped = cell.method == "diffprivlib" and reason is not None
        if cell not in held and not skipped:
            about = record["tables"].get(cell.table)
            if about is None:
                about = record["tables"][cell.table] = _about(cell.table, data_dir)
            if about["features"] >= WIDE or not METHODS[cell.method].wide:
                record["cells"].append(run_cell(cell, data_dir))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, record)
        done()
    return record


def run_cell(cell: Cell, data_dir: str | None) -> dict[str, Any]:
    """Fit and measure once; time is the processor's, without reading the table."""
    rows = split(cell.table, cell.seed, data_dir)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every method here says that it takes ranges from the rows
        scores = METHODS[cell.method].fit(rows, cell.epsilon, cell.seed)
    seconds = time.process_time() - started
    return {
        **asdict(cell),
        "auc": round(auc_of(scores, rows.test.y), 5),
        "seconds": round(seconds, 2),
        "commit": commit() if cell.method.startswith("tacit") else None,
    }


def _about(name: str, data_dir: str | None) -> dict[str, Any]:
    rows = table(name, data_dir)
    return {
        "about": TABLES[name].about,
        "rows": len(rows.y),
        "columns": rows.x.shape[1],
        "features": features_of(rows.x)[0].shape[1],
        "positive": round(float(rows.y.mean()), 4),
    }
