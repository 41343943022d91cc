"""Models that cannot be trained privately: what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from tacit.errors import ModelError


def refuse_renormalised_tables(model: nn.Module) -> None:
    """An embedding with ``max_norm`` rewrites its rows in the forward pass: refused before any pass."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ModelError(
                f"{name}: an embedding with max_norm rewrites the rows it looks up, without protection; set "
                "max_norm=None."
            )


def mixing(model: nn.Module) -> ModelError:
    """An example's loss depends on its company."""
    return ModelError(
        f"The loss of one example depends on the other examples of its batch{suspects(model)}; per-example gradients "
        "do not exist. Use GroupNorm or LayerNorm instead of BatchNorm, or freeze the statistics with .eval(), keep "
        "batch statistics and the batch size out of the model and the loss, mask padding, or train with "
        'isolation="construction".'
    )


def misattributed(names: Sequence[str]) -> ModelError:
    """Gradients that do not belong to the examples they are attributed to."""
    return ModelError(
        f"The per-example gradients of {', '.join(names[:4])} do not sum to autograd's gradient, or belong to other "
        "examples; the loss may use them outside the model's forward pass, or a layer sees the examples in another "
        'order, or only some of their rows. Train with isolation="construction", which needs no attribution.'
    )


def suspects(model: nn.Module) -> str:
    """Layers that are known to mix examples, as part of a sentence."""
    names = [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
    return f" through {', '.join(names[:3])}, in training mode" if names else ""
