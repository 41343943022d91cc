"""Frozen layers in eight bits: a quarter of the memory of a base model that only an adapter is trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError

_LEVELS = 127


def freeze_in_int8(model: nn.Module) -> nn.Module:
    """Replace every frozen linear layer of a model, in place, by one whose weights are whole numbers of eight bits.

    Call it after ``peft`` has put its adapter on: layers with a trained parameter stay as they are. Each row of a
    weight has its own scale, its largest entry over 127. Activations are not rounded: methods that round those choose
    scales by the whole batch, so one example would change what the others give.
    """
    if any("lora_magnitude_vector" in name for name, _ in model.named_parameters()):
        raise ArgumentError(
            "DoRA measures the weights it adapts, so they cannot be rounded; use LoRA without use_dora."
        )
    found = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if _is_linear(child) and not any(p.requires_grad for p in child.parameters())
    ]
    # A weight that an embedding shares stays: it would be held twice.
    held = [id(child.weight) for child in model.modules() if isinstance(child, nn.Embedding)]
    found = [(module, name, child) for module, name, child in found if id(child.weight) not in held]
    if not found:
        raise ArgumentError(
            "The model has no frozen linear layer; freeze the base model, or put an adapter of peft on it, first."
        )
    for module, name, child in found:
        setattr(module, name, Int8Linear(child).train(child.training))
    return model


class Int8Linear(nn.Module):
    """y = x Wᵀ + b with W = scales · codes, where codes are whole numbers of eight bits; nothing in it is trained."""

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight.detach()
        weight = weight if isinstance(layer, nn.Linear) else weight.t()
        scales = weight.abs().amax(1, keepdim=True).float() / _LEVELS
        scales = scales.where(scales > 0, 1.0)
        self.out_features, self.in_features = weight.shape
        self.register_buffer("codes", (weight / scales).round_().to(torch.int8))
        self.register_buffer("scales", scales.to(weight.dtype))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """The product, without a copy of the weights that outlives it."""
        found: Tensor = _Product.apply(x, self.codes, self.scales)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def extra_repr(self) -> str:
        """As ``nn.Linear`` shows itself."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class _Product(torch.autograd.Function):
    """x Wᵀ, which keeps codes and scales for the way back, and not W."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        return x @ _weight(codes, scales, x.dtype).t()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        codes, scales = ctx.saved_tensors
        return gradients[0] @ _weight(codes, scales, gradients[0].dtype), None, None


def _weight(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return codes.to(dtype) * scales.to(dtype)


def _is_linear(module: nn.Module) -> bool:
    """A linear layer of torch, or the transposed one of GPT-2's code in ``transformers``."""
    kind = type(module)
    return kind is nn.Linear or (
        kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
    )
