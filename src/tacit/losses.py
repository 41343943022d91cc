"""Per-example losses. A loss takes the model and a batch and gives one value per example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]
"""``loss(model, batch)`` gives one loss per example, a tensor of shape (examples,)."""


def cross_entropy(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Softmax cross-entropy; targets are class numbers."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets, reduction="none")


def binary_cross_entropy(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Logistic loss of a single output; targets are 0 or 1."""
    inputs, targets = batch
    outputs = model(inputs).flatten()
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype).flatten(), reduction="none")


def huber_error(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Half the squared error up to an error of 1, and growing in a straight line from there, averaged over outputs.

    Its slope is never above 1, so that targets far from all others pull no harder than the rest.
    """
    inputs, targets = batch
    outputs: Tensor = model(inputs)
    errors = F.huber_loss(outputs, targets.view_as(outputs), reduction="none")
    return errors.flatten(1).mean(1) if errors.dim() > 1 else errors


def squared_error(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Squared error, averaged over outputs."""
    inputs, targets = batch
    outputs: Tensor = model(inputs)
    errors = (outputs - targets.view_as(outputs)).square()
    return errors.flatten(1).mean(1) if errors.dim() > 1 else errors
