from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory with the public data sets, where there is one."""
    root = Path(os.environ.get("TACIT_DATA", ""))
    if "TACIT_DATA" not in os.environ or not (root / "mnist").is_dir():
        pytest.skip("no data sets: set TACIT_DATA to the directory that holds them")
    return root


@pytest.fixture
def write_csv(tmp_path: Path) -> Callable[..., Path]:
    def write(
        header: Sequence[str], rows: Sequence[Sequence[object]], name: str = "t.csv", sep: str = ","
    ) -> Path:
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=sep)
            writer.writerow(header)
            writer.writerows(rows)
        return path

    return write
