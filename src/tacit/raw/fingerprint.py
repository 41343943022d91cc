"""A digest of a data set, for processes to find out whether they hold the same one in the same order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, Subset, TensorDataset

from tacit import batches
from tacit.raw.generators import random_state, restore_random_state

SAMPLED = 256
"""Examples that stand for a data set whose examples have to be made one by one."""


def fingerprint(dataset: Dataset[Any], examples: int) -> str:
    """SHA-256 of what is in a data set and in which order: raw, to be compared and nothing else.

    Of a ``TensorDataset`` every byte counts; one that is not in memory says itself what it is. Of any other data set
    ``SAMPLED`` examples at positions spread over all of it do, each made with the same random numbers, so that random
    transformations do not tell equal data sets apart. Another order, other rows or a shifted file are then found with
    near certainty, a single changed example only if it is among them.
    """
    sha = hashlib.sha256()
    if isinstance(dataset, batches.Stored):
        return dataset.digest()
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


def shares_rows(dataset: Any, other: Any) -> bool:
    """Whether some rows of one data set are rows of the other: told by what they are made of, not by equal values.

    The same object, subsets of one data set with an index in common, lists with an item in common, tensors in the same
    memory; and data sets of one
    size with the same contents, in any order if they are tensors. Other copies are not found.
    """
    if dataset is other or not isinstance(other, Sized):
        return dataset is other
    if _source(dataset) is _source(other):
        return bool(np.intersect1d(_positions(dataset), _positions(other)).size)
    if type(dataset) is TensorDataset and type(other) is TensorDataset:
        if any(_overlap(a, b) for a, b in zip(dataset.tensors, other.tensors, strict=False)):
            return True
        shapes = [[(t.shape, t.dtype) for t in data.tensors] for data in (dataset, other)]
        return shapes[0] == shapes[1] and _contents(dataset) == _contents(other)
    if isinstance(dataset, list | tuple) and isinstance(other, list | tuple):
        mine = {id(item) for item in dataset if _is_one_of_a_kind(item)}
        if any(id(item) in mine for item in other):
            return True
    examples, others = len(dataset), len(other)
    return examples == others and fingerprint(dataset, examples) == fingerprint(cast(Any, other), examples)


def _is_one_of_a_kind(item: Any) -> bool:
    """Whether the same object means the same example, which of small numbers and words it does not."""
    if isinstance(item, tuple):
        return any(map(_is_one_of_a_kind, item))
    return isinstance(item, dict | list | Tensor | np.ndarray)


def _source(dataset: Any) -> Any:
    """The data set below all subsets."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def _positions(dataset: Any) -> np.ndarray:
    """The positions of a data set's examples in the one below all subsets."""
    positions = np.arange(len(dataset))
    while type(dataset) is Subset:
        positions = np.asarray(dataset.indices)[positions]
        dataset = dataset.dataset
    return positions


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether a row of one tensor begins at the address where a row of the other does."""
    if not a.numel() or not b.numel() or a.device != b.device or a.stride(0) != b.stride(0):
        return False
    step = max(1, a.stride(0)) * a.element_size()
    begins, others = (range(t.data_ptr(), t.data_ptr() + len(t) * step, step) for t in (a, b))
    return others[0] in begins or begins[0] in others


def _contents(dataset: TensorDataset) -> list[list[int]]:
    """What the tensors hold, whatever the order of rows: the sum of every byte of a row over all rows."""
    return [
        t.detach()
        .cpu()
        .contiguous()
        .view(-1)
        .view(torch.uint8)
        .view(len(t), -1)
        .sum(0, dtype=torch.int64)
        .tolist()
        for t in dataset.tensors
    ]


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
