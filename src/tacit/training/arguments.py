"""What a trainer is given, looked at before anything is spent: one sentence for what is often confused."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

from tacit.errors import ArgumentError, ModelError
from tacit.plan import Plan
from tacit.plan.sources import ROW_SCORES
from tacit.raw.fingerprint import shares_rows
from tacit.raw.sampling import check_dataset
from tacit.support.selection import check_source
from tacit.units import Units
from tacit.warning import warn

_TARGETS = ("y", "y_true", "target", "targets", "label", "labels")


def check_model(model: Any) -> None:
    """Refuse what is no module, or has no weights yet."""
    if not isinstance(model, nn.Module):
        shown = f"the class {model.__name__}" if inspect.isclass(model) else type(model).__name__
        raise ArgumentError(f"The model must be a torch.nn.Module that is made already, not {shown}.")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ArgumentError(
            "The model is on the meta device and has no weights; load or initialise them first (model.to_empty, then "
            "its weights)."
        )


def check_functions(**given: Any) -> None:
    """Refuse what cannot be called where a function is needed."""
    for name, function in given.items():
        if function is not None and not callable(function):
            raise ArgumentError(f"{name}= takes a function, not {type(function).__name__}.")


def check_metrics(metrics: Any) -> None:
    """Refuse metrics without names."""
    if metrics is None:
        return
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise ArgumentError(
            'metrics= takes a dictionary of functions of outputs and targets, such as {"accuracy": accuracy}; give {} '
            "for none."
        )


def check_loss(loss: Any) -> None:
    """Refuse a loss of outputs and targets where one of model and batch is needed."""
    name = getattr(loss, "__name__", type(loss).__name__)
    module = getattr(loss, "__module__", None) or ""
    if (
        isinstance(loss, nn.Module)
        or module.startswith(("torch.nn", "torch._C._nn"))
        or _second_is_a_target(loss)
    ):
        raise ArgumentError(
            f"loss= takes a function of the model and a batch that gives one value per example, not {name}; use "
            "tacit.losses.cross_entropy, or write lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], "
            "reduction='none')."
        )
    if not callable(loss):
        raise ArgumentError(f"loss= takes a function of the model and a batch, not {name}.")


def _second_is_a_target(loss: Any) -> bool:
    """Whether a function's own words say that it compares outputs with targets."""
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) > 1 and names[1] in _TARGETS


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
    try:
        inspect.signature(schedule).bind(0, 1)
    except TypeError as error:
        raise ArgumentError(
            "schedule= takes a function of the step and the number of steps, and is not given an optimizer; for a "
            "scheduler of PyTorch write tacit.training.schedules.from_torch(lambda optimizer: ...)."
        ) from error
    except ValueError:
        pass  # a function without a signature


def check_no_gradients(model: nn.Module) -> None:
    """Refuse to continue if a gradient was computed outside the private step: it is neither clipped nor noised."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            raise ModelError(
                f"The parameter {name!r} has a gradient that did not come through the private step; remove the "
                "backward pass that made it, nothing may be trained with it. One of public data is cleared with "
                "model.zero_grad()."
            )


def warn_of_evaluation_mode(model: nn.Module) -> None:
    """Say so if the whole model is in evaluation mode: few mean to train without dropout."""
    if not model.training:
        warn(
            "The model is in evaluation mode, so it trains without dropout and with fixed batch statistics; call "
            "model.train() first if that is not meant."
        )


def units_of(plan: Plan, dataset: Dataset[Any], ids: Sequence[Hashable] | np.ndarray | None) -> Units | None:
    """The units of privacy, where examples are grouped; the plan must count them."""
    if ids is None:
        if plan.grouped:
            raise ArgumentError(
                f"The plan is for {plan.examples} units, but the trainer is not told which example belongs to which; "
                "give units=, one id per example."
            )
        return None
    if not hasattr(dataset, "__len__"):
        check_dataset(dataset, plan.examples)
    found = Units.of(ids, len(dataset))  # type: ignore[arg-type]
    if not plan.grouped:
        raise ArgumentError("The plan counts examples, not units; make it with units= in place of examples=.")
    if found.count != plan.examples:
        raise ArgumentError(
            f"There are {found.count} different ids in units but the plan is for {plan.examples} units; make a plan "
            "for this data."
        )
    return found


def check_held_out(given: Any) -> None:
    """Refuse what holds data sets, or draws from one, where a data set to measure on is needed."""
    if given is None:
        return
    if isinstance(given, DataLoader):
        raise ArgumentError(
            "held_out takes a data set, not a DataLoader; give loader.dataset, and its collate_fn as collate= if it "
            "has one of its own."
        )
    if isinstance(given, Mapping):
        raise ArgumentError(
            f"held_out takes one data set, not a dictionary of them ({', '.join(map(repr, list(given)[:4]))}); give "
            "one, and call trainer.evaluate(other) for each of the others."
        )
    if (
        isinstance(given, tuple)
        and given
        and all(isinstance(part, torch.Tensor | np.ndarray) for part in given)
    ):
        raise ArgumentError(
            "held_out takes a data set, not a tuple of arrays; give TensorDataset(inputs, targets)."
        )
    if hasattr(given, "__len__") and not len(given):
        raise ArgumentError("The held-out data is empty; give some, or none.")


def refuse_training_rows(training: Dataset[Any], given: Dataset[Any] | None) -> None:
    """Refuse to measure on rows that are trained on."""
    if given is not None and shares_rows(training, given):
        raise ArgumentError(
            "The held-out data holds rows that are trained on, so figures on it would give them away without "
            "protection; give other data, or none."
        )


def check_supports(plan: Plan, model: nn.Module) -> None:
    """Refuse, before anything is spent, a plan whose later phases could not choose their support."""
    scored = 0
    by_row = {phase.score for phase in plan.phases if phase.score in ROW_SCORES}
    if len(by_row) > 1:
        raise ArgumentError(f"A plan can score rows in one way only, not by {' and '.join(sorted(by_row))}.")
    for phase in plan.training:
        check_source(phase.support, model)
        if scored < phase.support.scored_steps:
            raise ArgumentError(
                f"Phase {phase.name!r} needs at least {phase.support.scored_steps} scored steps before it to choose "
                f"its support, but the plan has {scored}; train longer or give the warm-up a larger share."
            )
        scored += phase.steps if phase.score is not None else 0
