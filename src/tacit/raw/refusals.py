"""Models that cannot be trained privately: what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from tacit.errors import ModelError

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def refuse_renormalised_tables(model: nn.Module) -> None:
    """An embedding with ``max_norm`` rewrites its rows in the forward pass: refused before any pass."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ModelError(
                f"{name}: an embedding with max_norm rewrites the rows it looks up, without protection; set "
                "max_norm=None."
            )


def refuse_unwatchable(model: nn.Module) -> None:
    """Refuse parameters that have no size yet, no real numbers or a part only here, and layers outside Python."""
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS and type(module).__module__.startswith("torch."):
            raise ModelError(
                f"{name or 'The model'} is wrapped in {type(module).__name__}, which adds gradients up before they are "
                "clipped; give the module inside it, and ranks=tacit.join() to train with several processes."
            )
        if type(module).__module__.startswith("opacus.grad_sample"):
            raise ModelError(
                f"{name or 'The model'} is wrapped in {type(module).__name__} of Opacus, whose hooks collect gradients "
                "themselves; give the module inside it (model._module)."
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{name or 'The model'} ({type(module).__name__}) is compiled by torch.jit, so its layers cannot be "
                "watched; train the module that it was made from, and compile it afterwards."
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ModelError(
                f"The parameter {name!r} belongs to a lazy layer and has no size yet; run the model once on an example "
                "that is not private (zeros of the right shape), then train."
            )
        if hasattr(parameter, "placements"):  # a DTensor, without importing what defines it
            raise ModelError(
                f"The parameter {name!r} is sharded over processes (fully_shard or tensor parallel); only "
                "tacit.Trainer trains sharded models. Use it, or give every process the whole model, with "
                "ranks=tacit.join()."
            )
        if parameter.requires_grad and parameter.is_complex():
            raise ModelError(
                f"The parameter {name!r} is complex; noise and clip norms are for real numbers. Keep it as a real "
                "parameter with a last dimension of 2 and use torch.view_as_complex(parameter) in the forward pass."
            )


def mixing(model: nn.Module) -> ModelError:
    """An example's loss depends on its company."""
    norms = suspects(model)
    way_out = (
        "Train tacit.models.without_batch_norm(model), a copy with group norms, or freeze the statistics with .eval()."
        if norms
        else "Keep batch statistics, the batch size and comparisons of examples out of the model and the loss, and "
        'mask padding; or train with isolation="construction", where every example is alone in its batch: a loss that '
        "compares examples has nothing to compare there."
    )
    return ModelError(
        f"The loss of one example depends on the other examples of its batch{norms}; per-example gradients do not "
        f"exist. {way_out}"
    )


def misattributed(names: Sequence[str]) -> ModelError:
    """Gradients that do not belong to the examples they are attributed to."""
    return ModelError(
        f"The per-example gradients of {', '.join(names[:4])} do not sum to autograd's gradient, or belong to other "
        "examples; the loss may use them outside the model's forward pass, or a layer sees the examples in another "
        'order, or only some of their rows. Train with isolation="construction", which needs no attribution.'
    )


def selected(name: str, what: str) -> ModelError:
    """A layer or an operation sees rows of some examples only, or another number of them for each."""
    return ModelError(
        f"{name} {what}, so it is not known which rows belong to which example; rows are selected before it, as by a "
        "router of experts or for masked tokens. Give it the rows of all examples and weigh by zero what is not "
        'selected, or train with isolation="construction", where every example is alone.'
    )


def unattributable(model: nn.Module, names: Sequence[str], why: Exception | None) -> ModelError:
    """No way was found to attribute gradients to examples; ``why`` is what the cheapest one failed with."""
    if isinstance(why, ModelError):
        return why
    if why is None:
        return misattributed(names)
    reason = " ".join(str(why).split())[:200].rstrip(".")
    return ModelError(
        f"The per-example gradients of {', '.join(names[:4])} could not be found: a layer that owns one of them is "
        "used in a way that cannot be followed, for example on selected rows only, as an expert behind a router. Give "
        "it the rows of all examples and weigh by zero what is not selected, register a rule for it (see "
        'tacit.raw.rules), or train with isolation="construction", where every example is alone. Trying gave '
        f"{type(why).__name__}: {reason}."
    )


def suspects(model: nn.Module) -> str:
    """Layers that are known to mix examples, as part of a sentence."""
    names = [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
    return f" through {', '.join(names[:3])}, in training mode" if names else ""
