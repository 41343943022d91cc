"""Per-example losses. A loss takes the model and a batch and gives one value per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]
"""``loss(model, batch)`` gives one loss per example, a tensor of shape (examples,)."""

IGNORED = -100
"""The label of a token that does not count, as in transformers."""


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


def next_token(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of every next token, averaged over the tokens of an example: for causal models of transformers.

    ``batch`` holds ``input_ids`` and, where there are some, ``attention_mask`` and ``labels``. What the mask leaves out
    and what is labelled -100 does not count; an example of which nothing counts has the loss 0.
    """
    losses, counted = token_losses(model, batch)
    return losses.sum(1) / counted.sum(1).clamp(min=1)


def token_losses(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of every next token, 0 where it does not count, and which of them count."""
    ids = batch["input_ids"]
    mask, labels = batch.get("attention_mask"), batch.get("labels", ids)
    logits = model(input_ids=ids, **({} if mask is None else {"attention_mask": mask})).logits[:, :-1]
    targets = labels[:, 1:]
    if mask is not None:
        targets = targets.masked_fill(mask[:, 1:] == 0, IGNORED)
    losses = F.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return losses.view(targets.shape), targets != IGNORED
