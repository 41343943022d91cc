"""What a trainer is given, looked at before anything is spent: one sentence for what is often confused."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tacit.errors import ArgumentError


def check_loss(loss: Any) -> None:
    """Refuse a loss of outputs and targets where one of model and batch is needed."""
    name = getattr(loss, "__name__", type(loss).__name__)
    module = getattr(loss, "__module__", None) or ""
    if isinstance(loss, nn.Module) or module.startswith(("torch.nn", "torch._C._nn")):
        raise ArgumentError(
            f"loss= takes a function of the model and a batch that gives one value per example, not {name}; use "
            "tacit.losses.cross_entropy, or write lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], "
            "reduction='none')."
        )
    if not callable(loss):
        raise ArgumentError(f"loss= takes a function of the model and a batch, not {name}.")


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimizer where a function that makes one is needed: supports change, and with them what is trained."""
    if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
        name = type(optimizer).__name__
        raise ArgumentError(
            f"optimizer= takes a function that makes an optimizer from named parameters, not {name}; write lambda "
            f"named: torch.optim.{name if hasattr(torch.optim, name) else 'SGD'}(named, lr=...)."
        )


def check_schedule(schedule: Any) -> None:
    """Refuse a scheduler of PyTorch where a function of step and steps is needed."""
    scheduler = inspect.isclass(schedule) and issubclass(schedule, LRScheduler | ReduceLROnPlateau)
    if scheduler or isinstance(schedule, LRScheduler | ReduceLROnPlateau):
        name = schedule.__name__ if inspect.isclass(schedule) else type(schedule).__name__
        raise ArgumentError(
            f"schedule= takes a function of the step and the number of steps, not {name}; write "
            f"tacit.training.schedules.from_torch(lambda optimizer: {name}(optimizer, ...))."
        )
    if not callable(schedule):
        raise ArgumentError(
            f"schedule= takes a function of the step and the number of steps, not {type(schedule).__name__}."
        )


def warn_of_evaluation_mode(model: nn.Module) -> None:
    """Say so if the whole model is in evaluation mode: few mean to train without dropout."""
    if not model.training:
        warnings.warn(
            "The model is in evaluation mode, so it trains without dropout and with fixed batch statistics; call "
            "model.train() first if that is not meant.",
            stacklevel=3,
        )
