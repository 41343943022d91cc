"""The data and models of the map: a training part, a part to tune on, and the published test part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.data import Task, load
from tacit.errors import ArgumentError
from tacit.models import build
from tacit_papers.sparsity_map.grid import Setting
from tacit_papers.sparsity_map.wide_tables import WIDE, wide_task

TUNING_SHARE = 1 / 6
_SPLIT_SEED = 20


@dataclass(frozen=True)
class Problem:
    """A task whose ``train`` excludes the rows of ``tuning``; ``task.held_out`` is measured once per seed."""

    task: Task
    train: TensorDataset
    tuning: TensorDataset
    test: TensorDataset

    def model(self, setting: Setting) -> nn.Module:
        """A fresh model."""
        options = {"width": setting.width} if setting.width else {}
        return build(setting.model, self.task, **options)


@lru_cache(maxsize=2)
def problem_of(data: str, pad: int, examples: int, data_dir: str | None) -> Problem:
    """The problem of a setting; the split, the padding and the order of columns never change.

    Up to a sixth of the training rows serve to tune; of the others ``examples`` are trained on (0: all).
    """
    task = wide_task(data, data_dir) if data in WIDE else load(data, data_dir, download=False)
    (x, y), (x_test, y_test) = _tensors(task.train), _tensors(task.held_out)
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    if pad:
        if x.dim() != 2:
            raise ArgumentError(f"Only tables can be padded with columns; {data!r} is none.")
        order = torch.randperm(x.shape[1] + pad, generator=generator)
        x, x_test = (
            torch.cat([part, uninformative(part, pad, generator)], 1)[:, order] for part in (x, x_test)
        )
        task = replace(task, input_shape=(x.shape[1],), features=())
    shuffled = torch.randperm(len(x), generator=generator)
    tuning, rest = shuffled[: int(TUNING_SHARE * len(x))], shuffled[int(TUNING_SHARE * len(x)) :]
    chosen = rest[:examples] if examples else rest
    return Problem(
        task,
        TensorDataset(x[chosen], y[chosen]),
        TensorDataset(x[tuning], y[tuning]),
        TensorDataset(x_test, y_test),
    )


def uninformative(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` columns that say nothing: copies of those of ``x`` in turn, each with its rows shuffled."""
    columns = [x[torch.randperm(len(x), generator=generator), place % x.shape[1]] for place in range(count)]
    return torch.stack(columns, 1)


def _tensors(dataset: object) -> tuple[Tensor, Tensor]:
    if not isinstance(dataset, TensorDataset):
        raise ArgumentError("The map needs data sets that are held in memory.")
    x, y = dataset.tensors
    return x, y
