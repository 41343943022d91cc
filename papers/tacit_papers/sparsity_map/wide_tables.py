"""Real wide tables for the map: values, pairs of values and words as columns."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task, load
from tacit.data.text import sst2_texts
from tacit.errors import FileError

_TEST_SHARE = 5
_WORD = re.compile(r"[a-z']+")


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


def _adult_pairs(where: Path) -> tuple[Pair, Pair]:
    """Adult with the product of every two columns beside them, which is what a linear model of interactions sees."""
    task = load("adult", str(where), download=False)
    parts = []
    for part in (task.train, task.held_out):
        assert isinstance(part, TensorDataset)
        x, y = part.tensors[:2]
        one, other = torch.triu_indices(x.shape[1], x.shape[1], offset=1)
        parts.append((torch.cat([x, x[:, one] * x[:, other]], 1), y))
    return parts[0], parts[1]


WORDS = 2_000


def _imdb_words(where: Path) -> tuple[Pair, Pair]:
    """Film reviews: is a word in it? The words are the most frequent ones of SST-2, a public data set."""
    (phrases, _), _ = sst2_texts(where, download=False)
    counts = Counter(word for phrase in phrases for word in set(phrase.lower().split()))
    place = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS))}
    train, test = (_present(where / "text" / f"imdb-{part}.tsv.xz", place) for part in ("train", "test"))
    return train, test


def _present(path: Path, place: dict[str, int]) -> Pair:
    if not path.exists():
        raise FileError(f"There is no {path}; say --data-dir or set TACIT_DATA.")
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [line.rstrip("\n").split("\t", 2) for line in file]
    x = np.zeros((len(lines), len(place)), np.float32)
    for row, (_, _, text) in enumerate(lines):
        x[row, [place[word] for word in set(_WORD.findall(text.lower())) if word in place]] = 1
    return _pair(x, np.array([int(line[0]) for line in lines], np.float32))


WIDE = {"diabetes130": _diabetes, "adult-pairs": _adult_pairs, "imdb-words": _imdb_words}


def _pair(x: Any, y: Any) -> Pair:
    return torch.from_numpy(x), torch.from_numpy(y)[:, None]


def _hashed(value: object) -> int:
    return int.from_bytes(hashlib.sha256(str(value).encode()).digest()[:4], "big")
