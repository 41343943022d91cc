"""Real wide tables for the map: hospital stays with every code as a column of its own, and phrases by their words."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.data.bags import Bags
from tacit.data.text import sst2_texts
from tacit.errors import FileError

WORDS = 4_096
_TEST_SHARE = 5


def wide_task(name: str, data_dir: str | None) -> Task:
    """The table by name: diabetes130 or sst2-words."""
    where = Path(data_dir or os.environ.get("TACIT_DATA", ""))
    train, test = _diabetes(where) if name == "diabetes130" else _words(where)
    return Task(
        name=name,
        train=TensorDataset(*train),
        held_out=TensorDataset(*test),
        kind="binary",
        input_shape=(train[0].shape[1],),
        classes=("no", "yes"),
    )


WIDE = ("diabetes130", "sst2-words")
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


def _words(where: Path) -> tuple[Pair, Pair]:
    """Phrases of SST-2 as 4,096 hashed words; each row has norm 1."""
    bags = Bags(buckets=WORDS, length=64)
    made = []
    for texts, marks in sst2_texts(where, download=False):
        ids = bags.ids(texts[:30_000])
        rows = np.zeros((len(ids), WORDS), np.float32)
        rows[np.arange(len(ids))[:, None], ids] = 1
        rows = rows[:, 1:] / np.sqrt(np.maximum(1, (ids != 0).sum(1, keepdims=True)))
        made.append(_pair(rows.astype(np.float32), np.asarray(marks[:30_000], np.float32)))
    return made[0], made[1]


def _pair(x: Any, y: Any) -> Pair:
    return torch.from_numpy(x), torch.from_numpy(y)[:, None]


def _hashed(value: object) -> int:
    return int.from_bytes(hashlib.sha256(str(value).encode()).digest()[:4], "big")
