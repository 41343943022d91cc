"""The ordinary step: mean loss, backward, torch.optim.SGD."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.contenders.types import Contender, Family, Step, StepSettings
from benchmarks.workloads import Batch, Workload

PIECE = 32


def build(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
    """A non-private SGD step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(workload.loss(model, batch).mean())
        optimizer.step()

    return step


def build_in_pieces(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
    """The same step with gradients gathered over pieces of the batch, as is done where memory is scarce."""
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    pieces = list(zip(*(part.split(PIECE) for part in batch), strict=True))

    def step() -> None:
        optimizer.zero_grad()
        for piece in pieces:
            torch.autograd.backward(workload.loss(model, piece).sum() / len(batch[0]))
        optimizer.step()

    return step


PLAIN = (
    Contender("sgd", "SGD", Family.SGD, build),
    Contender("sgd-cl", "SGD, channels_last", Family.SGD, build, channels_last=True, only_convolutional=True),
    Contender(
        "sgd-pieces",
        f"SGD, channels_last, in pieces of {PIECE}",
        Family.SGD,
        build_in_pieces,
        channels_last=True,
        only_pretrained=True,
    ),
)
