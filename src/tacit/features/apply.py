"""A task on features in place of a task on images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.utils.data import TensorDataset

from tacit.data.task import Pairs, Task
from tacit.errors import ArgumentError
from tacit.features.cache import FeatureCache
from tacit.features.registry import features


def on_features(task: Task, name: str, directory: Path | None = None) -> Task:
    """``task`` with the vectors of the fixed transform ``name`` in place of its images.

    A vector depends on its own image alone and has unit length, so who is in the training data changes one
    item as before. Vectors are kept in ``directory`` (``cache_dir()`` unless given).
    """
    about = features(name).about
    if len(task.input_shape) != 3 or task.value_range is None:
        raise ArgumentError(f"Features are for images with a public range of values; {task.name!r} has none.")
    low, high = task.value_range
    cache = FeatureCache(name, directory)

    def transformed(part: Pairs) -> TensorDataset:
        if not isinstance(part, TensorDataset):
            raise ArgumentError(f"Features are for images held in memory; {task.name!r} is not.")
        images, *rest = part.tensors
        scaled = images if (low, high) == (0.0, 1.0) else (images - low) / (high - low)
        return TensorDataset(cache.vectors(scaled), *rest)

    train = transformed(task.train)
    return replace(
        task,
        train=train,
        held_out=transformed(task.held_out),
        input_shape=tuple(train.tensors[0].shape[1:]),
        norm_bound=1.0,
        value_range=None,
        public_sources=(*task.public_sources, f"Features {name}: {about} No data set went into them."),
    )
