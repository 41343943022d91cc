"""What a contender is: a name and a function that builds one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn

from benchmarks.workloads import Batch, Workload

Step = Callable[[], None]


class Family(Enum):
    """Whose code takes the step."""

    SGD = "sgd"
    OPACUS = "opacus"
    TACIT = "tacit"


@dataclass(frozen=True)
class StepSettings:
    """The mechanism every private contender runs: flat clipping at C, noise σC per coordinate, then SGD."""

    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    learning_rate: float = 0.01


@dataclass(frozen=True)
class Contender:
    """One way to take a step.

    `build(model, batch, workload, settings)` returns the step, for a model and batch in the memory format.
    `active_ratio` is the share of coordinates it should move, `bar` the row of the targets it is held to.
    """

    name: str
    title: str
    family: Family
    build: Callable[[nn.Module, Batch, Workload, StepSettings], Step]
    channels_last: bool = False
    only_convolutional: bool = False
    only_pretrained: bool = False
    active_ratio: float = 1.0
    bar: str | None = None


def prepare(workload: Workload, contender: Contender, size: int | None = None) -> tuple[nn.Module, Batch]:
    """The model and the batch a contender gets, in its memory format."""
    model, (inputs, labels) = workload.model(), workload.batch(size)
    if contender.channels_last and workload.convolutional:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.to(memory_format=torch.channels_last)
    return model, (inputs, labels)
