"""Figures of a run as they come, released values only: JSON lines, CSV, TensorBoard where installed."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

from tacit.errors import FileError
from tacit.files import decode_json, write_atomically
from tacit.runs.layout import METRICS_FILE, METRICS_TABLE


class MetricsLog:
    """Appends one row per report to ``metrics.jsonl``; ``finish`` writes the same rows as ``metrics.csv``."""

    def __init__(self, directory: Path, *, done: int) -> None:
        self._path = directory / METRICS_FILE
        self._csv = directory / METRICS_TABLE
        # Rows of steps that a crash has lost are dropped: they will be taken, and written, again.
        self.rows = [row for row in read_metrics(directory) if row["step"] <= done]
        write_atomically(
            self._path, lambda p: p.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        )
        self._board = _tensorboard(directory)

    def add(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self.rows.append(row)
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise FileError(f"{self._path} cannot be written: {error.strerror}.") from error
        if self._board is not None:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self._board.add_scalar(key, value, row["step"])

    def finish(self) -> None:
        """Write the CSV file."""
        columns = list(dict.fromkeys(key for row in self.rows for key in row))

        def write(path: Path) -> None:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self.rows)

        write_atomically(self._csv, write)
        if self._board is not None:
            self._board.close()


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """The rows written so far; a last line that a crash has cut is left out."""
    path = directory / METRICS_FILE
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.") from error
    for line in lines:
        try:
            row = decode_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _tensorboard(directory: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory / "tensorboard"))
