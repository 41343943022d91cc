"""What every framework gets instead of data and gradients: a number per step, and an optimizer that moves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tacit.errors import ArgumentError
from tacit.training.arguments import check_no_gradients


class StepNumber:
    """The number of a step, where a framework expects a batch; it refuses to be read as one."""

    def __init__(self, number: int) -> None:
        self.private_step = number

    def __getitem__(self, key: Any) -> Any:
        raise NotABatchError

    def __iter__(self) -> Any:
        raise NotABatchError

    def __len__(self) -> int:
        raise NotABatchError

    def __getattr__(self, name: str) -> Any:
        raise NotABatchError


class NotABatchError(ArgumentError, AttributeError):
    """The number of a step was read as a batch. Frameworks that ask for attributes take it for a missing one."""

    def __init__(self) -> None:
        super().__init__(
            "A training step is given the number of a private step, not a batch: examples stay behind the wall, where "
            "loss= is computed on them. Leave training_step as it is, or call super().training_step(...) in it, and "
            "give loss= what the model is to learn."
        )


class StepNumbers(Dataset[StepNumber]):
    """The numbers of the steps, where a framework expects batches. Private examples never pass through its loop."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, number: int) -> StepNumber:
        return StepNumber(number)


def step_numbers(steps: int) -> DataLoader[StepNumber]:
    """A loader that gives one number per step, in order."""
    return DataLoader(StepNumbers(steps), batch_size=None, shuffle=False, collate_fn=_as_it_is)


def _as_it_is(number: Any) -> Any:
    return number


def check_step_number(batch: Any) -> None:
    """Refuse a batch that does not come from ``step_numbers``: someone else has sampled it."""
    if not isinstance(batch, StepNumber):
        raise ArgumentError(
            "The framework was given its own training data; Tacit samples the examples itself, so leave its "
            "training data and its sampler out."
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
