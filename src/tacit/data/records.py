"""The records of one party of a federated training: read from its own file by the schema that all parties share.

Nothing but the schema decides how a row becomes numbers, so what a row becomes depends on that row alone, and the same
row becomes the same numbers at every party.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from tacit.data.encode import bounded, encode, encode_target
from tacit.data.schema import Schema, schema_text
from tacit.data.table_file import Table, read_columns
from tacit.data.units import parted, unit_column
from tacit.errors import ArgumentError, FileError
from tacit.name_lists import listed


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


def check_public(schema: Schema) -> None:
    """Refuse a schema with facts that somebody has read off private rows.

    Raises:
        ArgumentError: If a column, or the target, is marked ``public = false``.
    """
    private = [name for name, column in schema.columns.items() if not column.public]
    if not schema.target.public:
        private.append(schema.target.name)
    if private:
        raise ArgumentError(
            f"The schema takes what it says about {listed(private, 4)} from somebody's rows (public = false); put "
            "in its place what is known without them, because all parties share it."
        )


def schema_digest(schema: Schema) -> str:
    """SHA-256 of what a schema says; comments and the order of keys in its file do not matter."""
    return hashlib.sha256(schema_text(schema).encode()).hexdigest()


def read_records(
    source: str | Path | Table, schema: Schema, unit: str | None = None, *, least: int = 2
) -> Records:
    """The rows of a table by ``schema``; columns that it does not name are not read, rows without a target left out.

    ``unit`` names the column that says whose row each is. A row of the result depends on that row alone. Fewer than
    ``least`` rows are refused.
    """
    table = source if isinstance(source, Table) else read_columns(source)
    if unit is not None:
        unit_column(table, unit, schema.target.name)
        if unit in schema.columns:
            raise FileError(
                f"The unit {unit!r} is among the columns of the schema; nothing is predicted from it."
            )
    y, known = encode_target(table, schema.target)
    if int(known.sum()) < least:
        raise FileError(f"{table.path} has too few rows with a target to take part.")
    x = encode(table, schema).x[known]
    return Records(
        torch.from_numpy(np.ascontiguousarray(x)),
        torch.from_numpy(np.ascontiguousarray(bounded(y[known], schema.target))),
        None if unit is None else parted(table.column(unit), known)[0],
    )
