"""The ordinary step: mean loss, backward, torch.optim.SGD."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.contenders.types import Contender, Family, Step, StepSettings
from benchmarks.workloads import Batch, Workload


def build(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
    """A non-private SGD step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(workload.loss(model, batch).mean())
        optimizer.step()

    return step


PLAIN = (
    Contender("sgd", "SGD", Family.SGD, build),
    Contender("sgd-cl", "SGD, channels_last", Family.SGD, build, channels_last=True, only_convolutional=True),
)
