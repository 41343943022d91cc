"""Measuring a model on data that is public or held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit import batches
from tacit.errors import ArgumentError
from tacit.losses import Loss
from tacit.warning import warn

Metric = Callable[[Tensor, Tensor], float]
"""``metric(outputs, targets)`` over a whole data set."""


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of examples whose highest output (or sign, for a single output) is the target."""
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        predicted = outputs.argmax(1)
    else:
        predicted = (outputs.flatten() > 0).to(targets.dtype)
    return float((predicted == targets.flatten()).float().mean())


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: Loss,
    dataset: Dataset[Any],
    metrics: Mapping[str, Metric] | None,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    chunk_size: int = 1024,
    most: int | None = None,
) -> dict[str, float]:
    """Mean loss and metrics in evaluation mode, over all batches or ``most`` of them.

    Metrics are for batches that are pairs of inputs and targets. None: accuracy for such batches, the loss alone for
    others.
    """
    outputs, targets, losses = [], [], []
    for batch in islice(_loader(dataset, collate, chunk_size), most):
        batch = batches.place(batch, _device(model), channels_last=False)
        if metrics is None:
            metrics = {"accuracy": accuracy} if _is_pair(batch) else {}
        elif metrics and not _is_pair(batch):
            raise ArgumentError(
                "Metrics need batches of (inputs, targets), and those of the held-out data are of type "
                f"{type(batch).__name__}; give metrics={{}} and measure the loss alone, or a collate function."
            )
        with _evaluating(model):
            found_loss, answer = _loss_and_outputs(model, loss, batch)
            losses.append(found_loss.float().cpu())
            if metrics:
                outputs.append((model(batch[0]) if answer is None else answer).float().cpu())
                targets.append(batch[1].cpu())
    if not losses:
        raise ArgumentError("The data set to measure on is empty.")
    found = {"loss": float(torch.cat(losses).mean())}
    for name, metric in (metrics or {}).items():
        found[name] = _figure(name, metric, torch.cat(outputs), torch.cat(targets))
    return found


def _figure(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """A metric's figure, NaN where it gives none: a run that was paid for does not end because of it."""
    try:
        return float(metric(outputs, targets))
    except Exception as error:
        why = " ".join(str(error).split())[:200].rstrip(". ")
        warn(f"The metric {name!r} gives no number ({type(error).__name__}: {why}); NaN stands for it.")
        return math.nan


def rehearse(
    model: nn.Module,
    loss: Loss,
    dataset: Dataset[Any],
    metrics: Mapping[str, Metric] | None,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
) -> None:
    """Measure on a few examples, so that what cannot be measured is found before training."""
    # Metrics may weigh the rows of the whole data set, so on a few only the form of a batch can be tried.
    tried = metrics and dict.fromkeys(metrics, _any_figure)
    try:
        evaluate(model, loss, dataset, tried, collate=collate, chunk_size=2, most=1)
    except ArgumentError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:200].rstrip(". ")
        raise ArgumentError(
            f"The held-out data cannot be measured ({type(error).__name__}: {why}); give it the form of the training "
            "data, give metrics={} to measure the loss alone, or no held_out."
        ) from error


def _any_figure(outputs: Tensor, targets: Tensor) -> float:
    return 0.0


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor)


def _loss_and_outputs(model: nn.Module, loss: Loss, batch: Any) -> tuple[Tensor, Tensor | None]:
    """The losses, and the outputs on the way to them if the loss asked the model for just these."""
    seen: list[tuple[Any, Any]] = []
    hook = model.register_forward_hook(lambda _, given, answer: seen.append((given, answer)))
    try:
        losses = loss(model, batch)
    finally:
        hook.remove()
    asked = _is_pair(batch) and len(seen) == 1 and len(seen[0][0]) == 1 and seen[0][0][0] is batch[0]
    return losses, seen[0][1] if asked and isinstance(seen[0][1], Tensor) else None


@torch.no_grad()
def outputs_of(model: nn.Module, dataset: Dataset[Any], *, chunk_size: int = 1024) -> tuple[Tensor, Tensor]:
    """The model's outputs in evaluation mode and the targets, for a data set of (inputs, targets)."""
    outputs, targets = [], []
    with _evaluating(model):
        for batch in _loader(dataset, None, chunk_size):
            inputs, target = batches.place(batch, _device(model), channels_last=False)
            outputs.append(model(inputs).float().cpu())
            targets.append(target.cpu())
    return torch.cat(outputs), torch.cat(targets)


@torch.no_grad()
def predict(model: nn.Module, inputs: Any, *, chunk_size: int = 1024) -> Tensor:
    """The model's outputs in evaluation mode, for stacked inputs."""
    rows = batches.rows(inputs)
    parts = []
    with _evaluating(model):
        for start in range(0, max(rows, 1), chunk_size):
            part = batches.take(inputs, torch.arange(start, min(rows, start + chunk_size)))
            parts.append(model(batches.place(part, _device(model), channels_last=False)).cpu())
    return torch.cat(parts)


class _evaluating:
    """Every module in evaluation mode, and back to the mode each had."""

    def __init__(self, model: nn.Module) -> None:
        self._modes = [(module, module.training) for module in model.modules()]

    def __enter__(self) -> None:
        for module, _ in self._modes:
            module.training = False

    def __exit__(self, *_: object) -> None:
        for module, mode in self._modes:
            module.training = mode


def _loader(dataset: Dataset[Any], collate: Any, chunk_size: int) -> Iterable[Any]:
    if type(dataset) is TensorDataset and collate is None:  # rows in memory need not be fetched one by one
        if not len(dataset):
            return ()
        return zip(*(torch.split(tensor, chunk_size) for tensor in dataset.tensors), strict=True)
    return DataLoader(dataset, batch_size=chunk_size, collate_fn=collate)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
