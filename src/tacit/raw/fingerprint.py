"""A digest of a data set, for processes to find out whether they hold the same one in the same order."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from tacit.raw.rehearsal import random_state, restore_random_state

SAMPLED = 256
"""Examples that stand for a data set whose examples have to be made one by one."""


def fingerprint(dataset: Dataset[Any], examples: int) -> str:
    """SHA-256 of what is in a data set and in which order: raw, to be compared and nothing else.

    Of a ``TensorDataset`` every byte counts. Of any other data set ``SAMPLED`` examples at positions spread over all
    of it do, each made with the same random numbers, so that random transformations do not tell equal data sets
    apart. Another order, other rows or a shifted file are then found with near certainty, a single changed example
    only if it is among them.
    """
    sha = hashlib.sha256()
    if type(dataset) is TensorDataset:
        for tensor in dataset.tensors:
            _add(sha, tensor)
        return sha.hexdigest()
    state = random_state()
    try:
        for position in sorted({place * (examples - 1) // (SAMPLED - 1) for place in range(SAMPLED)}):
            random.seed(position)
            np.random.seed(position)  # noqa: NPY002
            torch.manual_seed(position)
            _add(sha, dataset[position])
    finally:
        restore_random_state(state)
    return sha.hexdigest()


def _add(sha: Any, example: Any) -> None:
    leaves, structure = pytree.tree_flatten(example)
    sha.update(str(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            sha.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            sha.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        elif isinstance(leaf, np.ndarray) and leaf.dtype != object:
            sha.update(f"{leaf.dtype} {leaf.shape}".encode())
            sha.update(np.ascontiguousarray(leaf))
        else:
            sha.update(repr(leaf).encode())
