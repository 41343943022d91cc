"""Federated data: clients, public tables coded as in the paper, synthetic ones.

The data sets of the paper by name: ``adult``, ``bank``, ``kdd99``, ``syn-L-C1-C2`` and ``syn-H-C1-C2``.

The files are the published ones, gzipped, below ``DIR/tabular``; DIR is an argument or the environment
variable TACIT_DATA.
"""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError, FileError, check_count, check_positive, check_share
from tacit.federated.columns import ADULT, BANK, KDD99, Bins, Category, Column, Number


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Features (n × d, any real type) and labels in {−1, +1}; row i is the private record of client i."""

    name: str
    x: NDArray[np.generic] = field(repr=False)
    y: NDArray[np.float32] = field(repr=False)

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.y.shape != (len(self.x),):
            raise ArgumentError(
                f"{self.name}: x must be n × d and y of length n, got {self.x.shape}, {self.y.shape}."
            )
        if not np.isin(self.y, (-1, 1)).all():
            raise ArgumentError(f"{self.name}: labels must be −1 or +1.")

    @property
    def d(self) -> int:
        """The number of features."""
        return int(self.x.shape[1])

    def __len__(self) -> int:
        return len(self.x)


SIZES = {"syn-L": (60_000, 100), "syn-H": (100_000, 300)}


def synthetic(
    records: int, d: int, c1: float, c2: float, seed: int, *, name: str = "synthetic"
) -> FederatedData:
    """Draw records of ``d`` features whose magnitudes are mostly small, with labels of a hyperplane.

    x̄ ~ N(0, I) per record; one magnitude b_j ~ U[0, 1] per feature, multiplied by ``c1`` where it is at most
    ``c2``; x = x̄ ⊙ b; y = sign(x̄·w̄) for one w̄ ~ N(0, I).
    """
    check_count("records", records)
    check_count("d", d, least=2)
    check_positive("c1", c1)
    check_share("c2", c2)
    rng = np.random.default_rng(seed)
    magnitude = rng.random(d)
    magnitude = np.where(magnitude <= c2, c1 * magnitude, magnitude).astype(np.float32)
    hyperplane = rng.standard_normal(d, dtype=np.float32)
    x = rng.standard_normal((records, d), dtype=np.float32)
    y = np.where(x @ hyperplane >= 0, np.float32(1), np.float32(-1))
    x *= magnitude
    return FederatedData(name, x, y)


def named_synthetic(name: str, seed: int) -> FederatedData:
    """Return ``syn-L-C1-C2`` (60,000 × 100) or ``syn-H-C1-C2`` (100,000 × 300), such as syn-L-0.01-0.9."""
    family, _, parameters = name[:5], name[5:6], name[6:].split("-")
    try:
        records, d = SIZES[family]
        c1, c2 = (float(part) for part in parameters)
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"A synthetic data set has a name such as syn-L-0.01-0.9 or syn-H-0.1-0.6, not {name!r}."
        ) from error
    return synthetic(records, d, c1, c2, seed, name=name)


TABLES = ("adult", "bank", "kdd99")
KDD99_RECORDS = 70_000

Rows = list[list[str]]


def load(name: str, data_dir: str | Path | None = None, seed: int = 0) -> FederatedData:
    """Return the data set called ``name``; ``seed`` chooses the synthetic draw and the records of kdd99."""
    check_count("seed", seed, least=0)
    match name:
        case "adult":
            rows = [*_rows(data_dir, "adult.data.gz", ",", 15), *_rows(data_dir, "adult.test.gz", ",", 15)]
            return _table(name, rows, ADULT, lambda label: label.rstrip(".") == ">50K")
        case "bank":
            rows = _rows(data_dir, "bank-full.csv.gz", ";", 17)[1:]
            return _table(name, rows, BANK, lambda label: label == "yes")
        case "kdd99":
            rows = _rows(data_dir, "kddcup.data_10_percent.gz", ",", 42, KDD99_RECORDS, seed)
            return _table(name, rows, KDD99, lambda label: label != "normal.")
    if name.startswith("syn-"):
        return named_synthetic(name, seed)
    raise ArgumentError(
        f"There is no data set {name!r}; choose adult, bank, kdd99 or one such as syn-L-0.01-0.9; a table "
        "in a file needs --schema."
    )


def encode(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> NDArray[np.float32]:
    """Return the features of ``rows``, each in [0, 1]; a row of the result depends on that row alone."""
    blocks = [_encode_column([row[i] for row in rows], column) for i, column in enumerate(columns)]
    return np.concatenate(blocks, axis=1)


def _encode_column(cells: Sequence[str], column: Column) -> NDArray[np.float32]:
    match column:
        case Category():
            place = {value: i for i, value in enumerate(column.values)}
            return _one_hot([place.get(cell, -1) for cell in cells], len(column.values))
        case Bins():
            bins = np.searchsorted(np.array(column.cuts), _numbers(cells, column.name), side="left")
            return _one_hot(bins, len(column.cuts) + 1)
        case Number():
            distance = np.clip(_numbers(cells, column.name), column.low, column.high) - column.low
            span = column.high - column.low
            scaled: NDArray[np.float64] = (
                np.log1p(distance) / np.log1p(span) if column.log else distance / span
            )
            return scaled.astype(np.float32)[:, None]


def _one_hot(place: Sequence[int] | NDArray[np.int64], width: int) -> NDArray[np.float32]:
    result: NDArray[np.float32] = (np.asarray(place)[:, None] == np.arange(width)).astype(np.float32)
    return result


def _numbers(cells: Sequence[str], name: str) -> NDArray[np.float64]:
    try:
        return np.array(cells, np.float64)
    except ValueError as error:
        raise FileError(f"Column {name!r} must hold numbers: {error}.") from error


def _table(
    name: str, rows: Rows, columns: Sequence[Column], positive: Callable[[str], bool]
) -> FederatedData:
    y = np.array([1 if positive(row[-1]) else -1 for row in rows], np.float32)
    return FederatedData(name, encode(rows, columns), y)


def _rows(
    data_dir: str | Path | None,
    file: str,
    separator: str,
    width: int,
    most: int | None = None,
    seed: int = 0,
) -> Rows:
    folder = data_dir or os.environ.get("TACIT_DATA")
    if not folder:
        raise ArgumentError(
            f"Say where the data are: --data-dir DIR or TACIT_DATA=DIR, with {file} in DIR/tabular."
        )
    path = Path(folder) / "tabular" / file
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            lines = stream.read().splitlines()
        if most is not None:
            lines = [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))[:most]]
        return list(_checked(csv.reader(lines, delimiter=separator), path, width))
    except FileNotFoundError as error:
        raise FileError(f"There is no file {path}.") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def _checked(lines: Iterable[list[str]], path: Path, width: int) -> Iterable[list[str]]:
    for number, cells in enumerate(lines, 1):
        if not cells or cells[0].startswith("|"):
            continue
        if len(cells) != width:
            raise FileError(f"{path}, line {number}, has {len(cells)} fields where {width} were expected.")
        yield [cell.strip() for cell in cells]
