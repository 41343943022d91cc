"""Where the rows of a folder of Parquet files lie, and how chosen ones are read: a row group at a time.

A row group is the smallest part of a Parquet file that is decoded by itself. Which rows are wanted comes from
elsewhere; here every row group that holds one of them is read once, and all others are left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.table_file import PARQUET_SUFFIXES
from tacit.errors import FileError
from tacit.name_lists import listed

Positions = NDArray[np.int64]


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files of a folder and all folders below it, in the order of their names.

    Files and folders that begin with a dot or an underscore are left out: programs keep notes of their own there.
    """
    found = []
    for path in folder.rglob("*"):
        place = path.relative_to(folder)
        if path.suffix.lower() in PARQUET_SUFFIXES and not any(part[0] in "._" for part in place.parts):
            found.append(path)
    return sorted(found)


@dataclass(frozen=True)
class RowGroups:
    """The rows of some Parquet files, numbered through. ``ends[i]`` is the first row behind row group i.

    ``files`` are the paths; ``file`` and ``group`` say which row group of which file number i is. ``types`` are the
    columns that every file has, and their types in Arrow. ``text_bytes`` is about how many bytes a value has, column by
    column. ``states`` tell whether a file is still the same: its size, and when it was last written.
    """

    files: tuple[str, ...]
    states: tuple[tuple[int, int], ...]
    file: NDArray[np.int32]
    group: NDArray[np.int32]
    ends: Positions
    types: dict[str, Any]
    text_bytes: dict[str, float]

    @classmethod
    def of(cls, files: Sequence[Path], columns: Sequence[str]) -> RowGroups:
        """Read the footers of ``files``; each must have all of ``columns``. No row is read."""
        parquet = _parquet()
        file, group, counts, sizes = [], [], [], dict.fromkeys(columns, 0)
        types: dict[str, Any] = {}
        states = []
        for number, path in enumerate(files):
            try:
                states.append(_state(path))
                with parquet.ParquetFile(path) as opened:
                    about, schema = opened.metadata, opened.schema_arrow
            except (OSError, ValueError) as error:  # Arrow's errors are of these kinds
                raise FileError(
                    f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}"
                ) from error
            lacking = [name for name in columns if name not in schema.names]
            if lacking:
                raise FileError(f"{path} lacks the columns {listed(lacking)} that the schema declares.")
            for name in columns:
                held = schema.field(name).type
                if types.setdefault(name, held) != held:
                    raise FileError(
                        f"Column {name!r} holds {held} values in {path}, but {types[name]} in {files[0]}; write it "
                        "with one type."
                    )
            places = {about.schema.column(place).path: place for place in range(about.num_columns)}
            for index in range(about.num_row_groups):
                part = about.row_group(index)
                if not part.num_rows:
                    continue
                file.append(number)
                group.append(index)
                counts.append(part.num_rows)
                for name in columns:
                    if name in places:
                        sizes[name] += part.column(places[name]).total_uncompressed_size
        ends = np.cumsum(np.array(counts, dtype=np.int64))
        rows = int(ends[-1]) if len(ends) else 0
        return cls(
            tuple(map(str, files)),
            tuple(states),
            np.array(file, dtype=np.int32),
            np.array(group, dtype=np.int32),
            ends,
            types,
            {name: size / max(1, rows) for name, size in sizes.items()},
        )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def with_rows(self) -> list[str]:
        """The files that have rows."""
        return [self.files[number] for number in np.unique(self.file).tolist()]

    @property
    def largest(self) -> int:
        """Rows of the largest row group: it is decoded whole."""
        return int(np.diff(self.ends, prepend=0).max(initial=0))

    def start(self, number: int) -> int:
        """The first row of row group ``number``."""
        return int(self.ends[number - 1]) if number else 0

    def read(self, ordered: Positions, columns: Sequence[str]) -> Iterator[tuple[slice, Any]]:
        """The rows at positions in ascending order, as parts of ``ordered`` and Arrow tables of ``columns``."""
        groups = np.searchsorted(self.ends, ordered, side="right")
        numbers, firsts = np.unique(groups, return_index=True)
        bounds = zip(numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(ordered)], strict=True)
        for file, wanted in groupby(bounds, key=lambda bound: int(self.file[bound[0]])):
            path = self.files[file]
            changed = FileError(
                f"{path} has changed since training began; the promise is about the data it began with."
            )
            try:
                with _parquet().ParquetFile(path) as opened:
                    if _state(path) != self.states[file]:
                        raise changed
                    for number, first, stop in wanted:
                        table = opened.read_row_group(int(self.group[number]), columns=list(columns))
                        if table.num_rows != self.ends[number] - self.start(number):
                            raise changed
                        yield slice(first, stop), table.take(ordered[first:stop] - self.start(number))
            except FileError:
                raise
            except (OSError, ValueError) as error:
                raise FileError(f"{path} can no longer be read: {str(error).splitlines()[0]}") from error

    def digest(self) -> str:
        """Of the names of the files and where their row groups lie: equal for processes that see the same folder."""
        sha = hashlib.sha256(repr([Path(file).name for file in self.files]).encode())
        for array in (self.file, self.group, self.ends):
            sha.update(array.tobytes())
        sha.update(repr({name: str(held) for name, held in self.types.items()}).encode())
        return sha.hexdigest()


def _state(path: str | Path) -> tuple[int, int]:
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise FileError("Reading Parquet needs pyarrow: run pip install 'tacit-dp[data]'.") from error
    return pyarrow.parquet
