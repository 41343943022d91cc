"""Reading CSV and Parquet files into columns of text.

Every cell stays the text it was (stripped), so that one set of rules on missing values, numbers and dates
serves both formats. CSV needs the standard library only; Parquet needs pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tacit.errors import ArgumentError, FileError

SEPARATORS = (",", ";", "\t", "|")
PARQUET_SUFFIXES = (".parquet", ".pq")
_FIELD_LIMIT = 1 << 24


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; ``first_line`` is the line of row 0 in the file, for messages."""

    path: str
    columns: dict[str, list[str]]
    rows: int
    first_line: int

    def column(self, name: str) -> list[str]:
        """Return the column called ``name``, or say which columns there are."""
        if name not in self.columns:
            raise ArgumentError(
                f"{self.path} has no column {name!r}; its columns are {listed(list(self.columns))}."
            )
        return self.columns[name]

    def where(self, row: int) -> str:
        """Say where row ``row`` stands in the file."""
        return f"{self.path}, about line {row + self.first_line}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join names for a sentence, shortening long lists."""
    shown = ", ".join(repr(n) for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def row_keys(table: Table) -> list[str]:
    """Return one text per row that holds all its cells, to tell equal rows from different ones."""
    return ["\x1f".join(cells) for cells in zip(*table.columns.values(), strict=True)]


def read_columns(
    path: str | Path, *, separator: str | None = None, names: Sequence[str] | None = None
) -> Table:
    """Read a CSV file (also gzipped) or a Parquet file as a ``Table``.

    ``separator`` is found from the first line when it is not given. ``names`` names the columns of a CSV file
    that has no header line. A file without rows, a row of the wrong length, a repeated column name and bytes
    that are not UTF-8 are each refused.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.")
    table = (
        _read_parquet(path) if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv(path, separator, names)
    )
    if table.rows == 0:
        raise FileError(f"{path} has no rows.")
    return table


def _open_text(path: Path) -> IO[str]:
    with path.open("rb") as raw:
        gzipped = raw.read(2) == b"\x1f\x8b"
    if gzipped:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def find_separator(line: str) -> str:
    """Return the separator that occurs most often in ``line``; a comma if none does."""
    return max(SEPARATORS, key=lambda s: (line.count(s), -SEPARATORS.index(s)))


def _read_csv(path: Path, separator: str | None, names: Sequence[str] | None) -> Table:
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise ArgumentError(f"The separator must be one character such as ',' or ';', got {separator!r}.")
    try:
        with _open_text(path) as file:
            first = file.readline(_FIELD_LIMIT)
            if not first.strip() and not file.read(1):
                raise FileError(f"{path} is empty.")
            file.seek(0)
            return parse_rows(path, file, separator or find_separator(first), names)
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8 first."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def parse_rows(path: Path, file: Iterable[str], separator: str, names: Sequence[str] | None = None) -> Table:
    """Parse lines of CSV text; ``names`` names the columns where the first line does not."""
    limit = csv.field_size_limit(_FIELD_LIMIT)
    try:
        reader = csv.reader(file, delimiter=separator)
        if names is None:
            names = [name.strip() for name in next(_lines(reader), [])]
        _check_names(path, names)
        first_line = reader.line_num + 1
        columns: list[list[str]] = [[] for _ in names]
        # Equal cells share one string: a column of a few categories then costs a pointer per row.
        shared: list[dict[str, str]] = [{} for _ in names]
        rows = 0
        for cells in _lines(reader):
            if len(cells) != len(names):
                raise FileError(
                    f"{path}, line {reader.line_num}, has {len(cells)} fields where {len(names)} were "
                    f"expected (separator {separator!r})."
                )
            for column, pool, cell in zip(columns, shared, cells, strict=True):
                cell = cell.strip()
                column.append(pool.setdefault(cell, cell))
            rows += 1
        return Table(str(path), dict(zip(names, columns, strict=True)), rows, first_line)
    except csv.Error as error:
        raise FileError(f"{path} is not a readable CSV file: {error}.") from error
    finally:
        csv.field_size_limit(limit)


def _lines(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    return (cells for cells in reader if cells and any(cell.strip() for cell in cells))


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise FileError(f"{path} is empty.")
    seen: set[str] = set()
    for position, name in enumerate(names, 1):
        if not name:
            raise FileError(
                f"Column {position} of {path} has no name; give every column a name in the first line."
            )
        if name in seen:
            raise FileError(f"{path} has two columns called {name!r}; rename one.")
        seen.add(name)


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FileError(
            "Reading Parquet needs pyarrow: run pip install 'tacit-dp[data]', or save the file as CSV."
        ) from error
    try:
        data = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise FileError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from error
    _check_names(path, data.column_names)
    columns = {}
    for name in data.column_names:
        try:
            cells = data.column(name).cast(pyarrow.string()).to_pylist()
        except (pyarrow.ArrowException, ValueError, NotImplementedError) as error:
            raise FileError(
                f"Column {name!r} of {path} holds {data.schema.field(name).type} values, which are no table "
                "cells; drop the column or write it as text."
            ) from error
        columns[name] = ["" if cell is None else cell.strip() for cell in cells]
    return Table(str(path), columns, data.num_rows, 1)
