"""Tasks with few classes, far from the photographs that the network was trained on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch.utils.data import TensorDataset

from tacit.data import Task, load
from tacit.data.task import Pairs
from tacit_papers.sparta.efficientnet import first_blocks

SHIRTS = (0, 6)
"""T-shirts and shirts: the two classes of Fashion-MNIST that are most often taken for each other."""


def shirts() -> Task:
    """Shirt or T-shirt: 12,000 images to train on, 2,000 to measure on."""
    return _pair(load("fmnist"), "shirts", SHIRTS)


def _pair(task: Task, name: str, classes: tuple[int, int]) -> Task:
    """The examples of two classes; the second is the positive one."""

    def chosen(part: Pairs) -> TensorDataset:
        assert isinstance(part, TensorDataset)
        images, labels = part.tensors[:2]
        inside = torch.isin(labels, torch.tensor(classes))
        positive = (labels[inside] == classes[1]).to(torch.float32)
        return TensorDataset(images[inside], positive[:, None])

    assert task.held_out is not None
    return replace(
        task,
        name=name,
        kind="binary",
        classes=tuple(task.classes[label] for label in classes),
        train=chosen(task.train),
        held_out=chosen(task.held_out),
    )


@cache
def shirts_in_blocks() -> Task:
    """``shirts`` after the frozen blocks of EfficientNet-Lite0, which are computed once."""
    task = shirts()

    def through(part: Pairs | None) -> TensorDataset:
        assert isinstance(part, TensorDataset)
        return TensorDataset(first_blocks(part.tensors[0]), part.tensors[1])

    train = through(task.train)
    return replace(
        task,
        name="shirts after frozen blocks",
        train=train,
        held_out=through(task.held_out),
        input_shape=tuple(train.tensors[0].shape[1:]),
        norm_bound=None,
    )
