"""A site's own records: read from its file by the public schema, and kept, encoded, where only the vault reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.utils.data import TensorDataset

from tacit.data.encode import bounded, encode, encode_target
from tacit.data.schema import Schema
from tacit.data.table_file import Table, read_columns
from tacit.data.units import parted, unit_column
from tacit.errors import FileError
from tacit.files import write_bytes

RECORDS_FILE = "records.safetensors"


@dataclass(frozen=True)
class Records:
    """Encoded rows, their answers, and a number per row that says whose it is where a unit is a group of rows."""

    x: Tensor
    y: Tensor
    units: np.ndarray | None = None

    @property
    def dataset(self) -> TensorDataset:
        """The rows as a data set."""
        return TensorDataset(self.x, self.y)

    @property
    def count(self) -> int:
        """The number of units: of rows, or of groups of them."""
        return len(self.x) if self.units is None else len(np.unique(self.units))

    def part(self, rows: Tensor) -> Records:
        """Some of the rows."""
        return Records(self.x[rows], self.y[rows], None if self.units is None else self.units[rows.numpy()])


def read_records(source: str | Path | Table, schema: Schema, unit: str | None = None) -> Records:
    """The rows of a table by ``schema``; columns that it does not name are not read, rows without a target left out.

    ``unit`` names the column that says whose row each is. A row of the result depends on that row alone.
    """
    table = source if isinstance(source, Table) else read_columns(source)
    if unit is not None:
        unit_column(table, unit, schema.target.name)
        if unit in schema.columns:
            raise FileError(
                f"The unit {unit!r} is among the columns of the schema; nothing is predicted from it."
            )
    y, known = encode_target(table, schema.target)
    if int(known.sum()) < 2:
        raise FileError(f"{table.path} has too few rows with a target to take part.")
    x = encode(table, schema).x[known]
    return Records(
        torch.from_numpy(np.ascontiguousarray(x)),
        torch.from_numpy(np.ascontiguousarray(bounded(y[known], schema.target))),
        None if unit is None else parted(table.column(unit), known)[0],
    )


def write_records(path: Path, records: Records) -> None:
    """Keep records in a file that only its owner can read."""
    tensors = {"x": records.x.contiguous(), "y": records.y.contiguous()}
    if records.units is not None:
        tensors["units"] = torch.from_numpy(np.ascontiguousarray(records.units.astype(np.int64)))
    write_bytes(path, save(tensors), mode=0o600)


def load_records(path: Path) -> Records:
    """Read what ``write_records`` kept."""
    try:
        found: Mapping[str, Tensor] = load_file(path)
        x, y = found["x"], found["y"]
        units = found.get("units")
        if x.dim() != 2 or y.dim() not in (1, 2) or len(x) != len(y):
            raise ValueError("its rows and answers do not fit each other")
        if units is not None and (units.shape != y.shape[:1] or units.dtype != torch.int64):
            raise ValueError("its units do not fit its rows")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"The records {path} cannot be read: {error}.") from error
    return Records(x, y, None if units is None else units.numpy())
