"""What every framework gets instead of data and gradients: a number per step, and an optimizer that moves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tacit.errors import ArgumentError, ModelError


class StepNumbers(Dataset[dict[str, int]]):
    """The numbers of the steps, where a framework expects batches. Private examples never pass through its loop."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, number: int) -> dict[str, int]:
        return {"private_step": number}


def step_numbers(steps: int) -> DataLoader[dict[str, int]]:
    """A loader that gives one number per step, in order."""
    return DataLoader(StepNumbers(steps), batch_size=None, shuffle=False)


def check_step_number(batch: Any) -> None:
    """Refuse a batch that does not come from ``step_numbers``: someone else has sampled it."""
    if not isinstance(batch, dict) or set(batch) != {"private_step"}:
        raise ArgumentError(
            "The framework was given its own training data; Tacit samples the examples itself, so leave its "
            "training data and its sampler out."
        )


def check_no_gradients(model: nn.Module) -> None:
    """Refuse to continue if a gradient was computed outside the private step: it is neither clipped nor noised."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            raise ModelError(
                f"The parameter {name!r} has a gradient that did not come through the private step; remove the "
                "backward pass that made it, nothing may be trained with it."
            )


class Bystander(torch.optim.Optimizer):
    """An optimizer for frameworks that insist on one: it never moves a weight, and refuses gradients."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__(list(model.parameters()), {"lr": rate})
        self._model = model

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Check that no gradient is there, and do nothing."""
        check_no_gradients(self._model)


def refuse(settings: Iterable[tuple[bool, str]]) -> None:
    """Raise for the first setting that is on, with the sentence that says why it cannot be and what to do."""
    for found, sentence in settings:
        if found:
            raise ArgumentError(sentence)
