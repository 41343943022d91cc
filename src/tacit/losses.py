"""Per-example losses. A loss takes the model and a batch and gives one value per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ModelError

Loss = Callable[[nn.Module, Any], Tensor]
"""``loss(model, batch)`` gives one loss per example, a tensor of shape (examples,)."""

IGNORED = -100
"""The label of a token that does not count, as in transformers."""


def cross_entropy(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Softmax cross-entropy; targets are class numbers, or a share of every class."""
    inputs, targets = _pair("cross_entropy", batch)
    outputs = model(inputs)
    if targets.shape == outputs.shape:
        return F.cross_entropy(outputs, targets.to(outputs.dtype), reduction="none")
    if targets.is_floating_point():
        raise ModelError(
            f"Targets of cross_entropy are class numbers, and these are {targets.dtype}; convert them, with "
            "targets.long(), or train with squared_error if they are measurements."
        )
    if targets.dim() == outputs.dim() and targets.shape[1:2] == (1,):
        targets = targets.squeeze(1)
    return F.cross_entropy(outputs, targets.long(), reduction="none")


def binary_cross_entropy(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Logistic loss of a single output; targets are 0 or 1."""
    inputs, targets = _pair("binary_cross_entropy", batch)
    outputs = model(inputs)
    if outputs.numel() != targets.numel():
        raise ModelError(
            "binary_cross_entropy takes a model with one output per example, and the shapes of outputs and targets are "
            f"{_shape(outputs)} and {_shape(targets)} for each; use cross_entropy for several classes."
        )
    outputs = outputs.flatten()
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype).flatten(), reduction="none")


def with_centre(loss: Loss) -> Loss:
    """``loss``, which also draws the model's centre to the middle of the inputs and stays as large as it was.

    Half the squared distance of an example from the centre joins the loss, less its own value: gradients see it,
    figures do not. Only the centre follows it.
    """

    def value(model: nn.Module, batch: Any) -> Tensor:
        found = loss(model, batch)
        inputs, _ = _pair("with_centre", batch)
        distance: Tensor = 0.5 * model.from_centre(inputs).square().sum(1)  # type: ignore[operator]
        return found + (distance - distance.detach())

    return value


def huber_error(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Half the squared error up to an error of 1, and growing in a straight line from there, averaged over outputs.

    Its slope is never above 1, so that targets far from all others pull no harder than the rest.
    """
    outputs, targets = _alike("huber_error", model, batch)
    errors = F.huber_loss(outputs, targets, reduction="none")
    return errors.flatten(1).mean(1) if errors.dim() > 1 else errors


def squared_error(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Squared error, averaged over outputs."""
    outputs, targets = _alike("squared_error", model, batch)
    errors = (outputs - targets).square()
    return errors.flatten(1).mean(1) if errors.dim() > 1 else errors


def _pair(loss: str, batch: Any) -> tuple[Any, Tensor]:
    """The inputs and targets of a batch, if it has that form."""
    if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    if isinstance(batch, Mapping):
        names = list(map(repr, batch))
        form = f"dictionaries with {', '.join(names[:4]) or 'nothing'}"
        first, last = (names[0], names[-1]) if len(names) > 1 else ("'x'", "'y'")
        shown = f"model(batch[{first}]), batch[{last}]"
    else:
        several = isinstance(batch, list | tuple)
        form = f"a {type(batch).__name__}{f' of {len(batch)} parts' if several else ''}"
        if several and len(batch) == 2:
            form += f", the second of which is a {type(batch[1]).__name__} and no tensor"
        shown = "model(...), ..."
    raise ModelError(
        f"tacit.losses.{loss} takes batches of (inputs, targets), and these are {form}; write a loss for them, such as "
        f"lambda model, batch: F.cross_entropy({shown}, reduction='none')."
    )


def _alike(loss: str, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The outputs for a batch and its targets, of the same shape."""
    inputs, targets = _pair(loss, batch)
    outputs: Tensor = model(inputs)
    if outputs.numel() != targets.numel():
        raise ModelError(
            f"{loss} compares as many outputs as targets, and their shapes for one example are {_shape(outputs)} and "
            f"{_shape(targets)}; give the model as many outputs as there are targets, or use cross_entropy for classes."
        )
    return outputs, targets.view_as(outputs)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape[1:]))


def next_token(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of every next token, averaged over the tokens of an example: for causal models of transformers.

    ``batch`` holds ``input_ids`` and, where there are some, ``attention_mask`` and ``labels``. What the mask leaves out
    and what is labelled -100 does not count; an example of which nothing counts has the loss 0.
    """
    losses, counted = token_losses(model, batch)
    return losses.sum(1) / counted.sum(1).clamp(min=1)


def token_losses(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of every next token, 0 where it does not count, and which of them count."""
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise ModelError(
            "next_token takes batches that are dictionaries with 'input_ids', and 'attention_mask' and 'labels' where "
            f"there are some, and this is a {type(batch).__name__} without; give a collate= that makes them."
        )
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
