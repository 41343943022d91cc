"""Layers that normalise each example on its own, then scale and shift: y = x̂ γ + β.

The gradients are ∂γ = Σₜ bₜ x̂ₜ and ∂β = Σₜ bₜ over the positions t that share γ and β.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.raw.gradients.base import TILE
from tacit.raw.gradients.scratch import scratch
from tacit.raw.rules.registry import register
from tacit.raw.watched_layer import WatchedLayer


@register(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, layer: WatchedLayer, x: Tensor) -> Tensor:
    """Normalised over the trailing dimensions, which γ and β cover entirely."""
    x, batch = layer.enter(_full_precision(x))
    output, mean, rstd = torch.native_layer_norm(
        x, module.normalized_shape, module.weight, module.bias, module.eps
    )

    def gradients(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dims = len(module.normalized_shape)
        return _over_positions((x - mean).mul_(rstd).mul_(b), batch, dims), _over_positions(b, batch, dims)

    return layer.direct(x, output, (module.weight, module.bias), gradients)


@register(nn.RMSNorm)
def rms_norm(module: nn.RMSNorm, layer: WatchedLayer, x: Tensor) -> Tensor:
    """Divided by the root mean square over the trailing dimensions."""
    x, batch = layer.enter(_full_precision(x))
    output = F.rms_norm(x, module.normalized_shape, module.weight, module.eps)
    eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps

    def gradients(x: Tensor, b: Tensor) -> tuple[Tensor]:
        dims = len(module.normalized_shape)
        mean_square = x.square().mean(tuple(range(-dims, 0)), keepdim=True)
        return (_over_positions(x * mean_square.add_(eps).rsqrt_() * b, batch, dims),)

    return layer.direct(x, output, (module.weight,), gradients)


_HUGGING_FACE = (
    "llama.modeling_llama.LlamaRMSNorm",
    "mistral.modeling_mistral.MistralRMSNorm",
    "mixtral.modeling_mixtral.MixtralRMSNorm",
    "qwen2.modeling_qwen2.Qwen2RMSNorm",
    "qwen3.modeling_qwen3.Qwen3RMSNorm",
    "phi3.modeling_phi3.Phi3RMSNorm",
    "granite.modeling_granite.GraniteRMSNorm",
    "olmo2.modeling_olmo2.Olmo2RMSNorm",
    "smollm3.modeling_smollm3.SmolLM3RMSNorm",
)
"""Classes of ``transformers`` that divide by the root mean square and multiply by a weight, in the same code."""


@register(*(f"transformers.models.{name}" for name in _HUGGING_FACE))
def hugging_face_rms_norm(module: Any, layer: WatchedLayer, x: Tensor) -> Tensor:
    """Divided in single precision by the root mean square over the last dimension."""
    x, batch = layer.enter(x)
    kind, wide = x.dtype, x.to(torch.float32)
    normal = F.rms_norm(wide, (wide.shape[-1],), None, module.variance_epsilon)
    output = module.weight * normal.to(kind)

    def gradients(x: Tensor, b: Tensor) -> tuple[Tensor]:
        scale = x.square().mean(-1, keepdim=True).add_(module.variance_epsilon).rsqrt_()
        return (_over_positions((x * scale).to(kind).mul_(b), batch, 1),)

    return layer.direct(wide, output, (module.weight,), gradients)


@register(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, layer: WatchedLayer, x: Tensor) -> Tensor:
    """Normalised over groups of channels; γ and β per channel."""
    return _grouped(layer, x, module.weight, module.bias, module.num_groups, module.eps)


# Always: torch 2.13 finds a wrong gradient for the input of instance_norm in a batch of one.
@register(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, always=True)
def instance_norm(
    module: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, layer: WatchedLayer, x: Tensor
) -> Tensor:
    """Normalised per channel and example; with frozen running statistics it is an affine layer."""
    if module.track_running_stats:
        return _frozen(module, layer, x)
    return _grouped(layer, x, module.weight, module.bias, x.shape[1], module.eps)


# Always: with frozen statistics the way back is much cheaper by this rule.
@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, always=True)
def batch_norm(
    module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, layer: WatchedLayer, x: Tensor
) -> Tensor:
    """Only with frozen statistics, where it is an affine layer."""
    return _frozen(module, layer, x)


def _frozen(module: Any, layer: WatchedLayer, x: Tensor) -> Tensor:
    mean, variance = module.running_mean, module.running_var
    if module.training or mean is None or variance is None:
        raise ModelError(
            f"{layer.name} ({type(module).__name__}) is in training mode and mixes the examples of a batch; use "
            "GroupNorm instead, or freeze its statistics with .eval() on that module."
        )
    x, _ = layer.enter(_full_precision(x))
    rstd = (variance + module.eps).rsqrt()
    scale = (rstd if module.weight is None else rstd * module.weight.detach()).to(x.dtype)
    start = -mean * scale if module.bias is None else module.bias.detach() - mean * scale
    shape = (-1, *[1] * (x.dim() - 2))
    # Multiplied and added, the way back is one product; that of batch_norm costs two to three times as much.
    output = torch.addcmul(start.to(x.dtype).view(shape), x, scale.view(shape))

    def gradients(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        shift = _per_channel(b)
        return (_products_per_channel(b, x) - shift * mean) * rstd, shift

    return layer.direct(x, output, (module.weight, module.bias), gradients)


def _grouped(
    layer: WatchedLayer, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Tensor:
    x, _ = layer.enter(_full_precision(x))
    rows, channels = x.shape[:2]
    output, mean, rstd = torch.native_group_norm(
        x, weight, bias, rows, channels, math.prod(x.shape[2:]), groups, eps
    )
    mean, rstd = mean.detach(), rstd.detach()  # they would keep the graph, whose hook keeps them

    def gradients(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        # x̂ = (x − μ)/s with μ and s per group, so Σ b x̂ = (Σ b x − μ Σ b)/s: no normalised copy is made.
        shift, products = _per_channel(b), _products_per_channel(b, x)
        centre, scale = (s.repeat_interleave(channels // groups, 1) for s in (mean, rstd))
        return (products - centre * shift) * scale, shift

    return layer.direct(x, output, (weight, bias), gradients)


def _over_positions(rows: Tensor, batch: int, trailing: int) -> Tensor:
    """(rows, *trailing dimensions): the sum over everything between."""
    rows = rows.movedim(batch, 0)
    between = tuple(range(1, rows.dim() - trailing))
    return rows.sum(between) if between else rows


def _per_channel(x: Tensor) -> Tensor:
    """(rows, channels): the sum over all positions."""
    return x.flatten(2).sum(2) if x.dim() > 2 else x


def _products_per_channel(b: Tensor, x: Tensor) -> Tensor:
    """(rows, channels): Σ b x over all positions, a cache-sized tile at a time."""
    if x.dim() == 2:
        return b * x
    b, x = b.movedim(1, -1).flatten(1, -2), x.movedim(1, -1).flatten(1, -2)
    sums = b.new_empty(len(b), b.shape[2])
    step = max(1, TILE // (b.shape[1] * b.shape[2]))
    for start in range(0, len(b), step):
        part = slice(start, min(len(b), start + step))
        tile = scratch("products", (part.stop - start, *b.shape[1:]), b)
        torch.sum(torch.mul(b[part], x[part], out=tile), 1, out=sums[part])
    return sums


def _full_precision(x: Tensor) -> Tensor:
    """Autocast runs normalisation in single precision; so do the watched operations."""
    return x.float() if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float32 else x
