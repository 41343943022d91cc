"""A real wide table for the map: hospital stays with every value of a text column as a column of its own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.errors import FileError

_TEST_SHARE = 5


def wide_task(name: str, data_dir: str | None) -> Task:
    """The table by name."""
    train, test = WIDE[name](Path(data_dir or os.environ.get("TACIT_DATA", "")))
    return Task(
        name=name,
        train=TensorDataset(*train),
        held_out=TensorDataset(*test),
        kind="binary",
        input_shape=(train[0].shape[1],),
        classes=("no", "yes"),
    )


Pair = tuple[torch.Tensor, torch.Tensor]


def _diabetes(where: Path) -> tuple[Pair, Pair]:
    """The first stay of every patient: is the patient admitted again? Every value of a text column is a column.

    A fifth of the patients, by a hash of their number, is the test part. The list of values is taken to be public.
    """
    import pandas

    path = where / "tabular" / "diabetes130.csv.gz"
    if not path.exists():
        raise FileError(f"There is no {path}; say --data-dir or set TACIT_DATA.")
    frame = pandas.read_csv(path, low_memory=False).drop_duplicates("patient_nbr")
    y = (frame["readmitted"] != "NO").to_numpy(np.float32)
    test = np.array([_hashed(patient) % _TEST_SHARE == 0 for patient in frame["patient_nbr"]])
    inputs = frame.drop(columns=["encounter_id", "patient_nbr", "readmitted"])
    numbers = [c for c in inputs.columns if inputs[c].dtype.kind in "if" and not c.endswith("_id")]
    scaled = inputs[numbers].fillna(0).clip(upper=100).to_numpy(np.float32) / np.float32(100)
    parts = [scaled]
    for column in inputs.columns.difference(numbers):
        codes, values = pandas.factorize(inputs[column].astype(str), sort=True)
        parts.append(np.eye(len(values), dtype=np.float32)[codes])
    x = np.concatenate(parts, axis=1)
    return _pair(x[~test], y[~test]), _pair(x[test], y[test])


WIDE = {"diabetes130": _diabetes}


def _pair(x: Any, y: Any) -> Pair:
    return torch.from_numpy(x), torch.from_numpy(y)[:, None]


def _hashed(value: object) -> int:
    return int.from_bytes(hashlib.sha256(str(value).encode()).digest()[:4], "big")
