"""Multi-head attention: four linear layers around a softmax."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.raw.rules.registry import register
from tacit.raw.watched_layer import WatchedLayer


@register(nn.MultiheadAttention, owns_children=True)
def multihead_attention(
    module: nn.MultiheadAttention,
    layer: WatchedLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The projections are watched; the softmax between them has no parameters."""
    if query.dim() != 3:
        raise ModelError(
            f"{layer.name}: attention inputs need a dimension of examples; got {query.dim()} dimensions."
        )
    shared = query is key and key is value
    if not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    q, k, v = _project(module, layer, query, key, value, shared)
    if module.bias_k is not None and module.bias_v is not None:
        k, v = (
            torch.cat([x, _shift(layer, x[:, :1], bias)], 1)
            for x, bias in ((k, module.bias_k), (v, module.bias_v))
        )
    examples, targets, _ = q.shape
    sources, heads = k.shape[1], module.num_heads
    if module.add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    # What is attended to besides the inputs is masked for nobody.
    more = k.shape[1] - sources + (module.bias_k is not None)
    sources = k.shape[1]
    attn_mask, key_padding_mask = (
        x if x is None or not more else F.pad(x, (0, more)) for x in (attn_mask, key_padding_mask)
    )

    q, k, v = (x.reshape(examples, -1, heads, module.head_dim).transpose(1, 2) for x in (q, k, v))
    mask = _mask(module, attn_mask, key_padding_mask, examples, targets, sources, q)
    dropout = module.dropout if module.training else 0.0
    weights: Tensor | None = None
    if need_weights:
        logits = q @ k.transpose(-1, -2) / math.sqrt(module.head_dim)
        weights = torch.softmax(logits if mask is None else logits + mask, -1)
        mixed = F.dropout(weights, dropout) @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    # In memory the layer's own output has time first, and dropout after it draws in the order of memory.
    mixed = mixed.permute(2, 0, 1, 3).reshape(targets, examples, -1)
    output = layer.recorder.linear(mixed, module.out_proj.weight, module.out_proj.bias, batch=1)
    return output.transpose(0, 1) if module.batch_first else output, weights


def _project(
    module: nn.MultiheadAttention,
    layer: WatchedLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shared: bool,
) -> tuple[Tensor, ...]:
    linear, width, bias = layer.recorder.linear, module.embed_dim, module.in_proj_bias
    if not module._qkv_same_embed_dim:
        outputs = []
        for place, (x, weight) in enumerate(
            zip(
                (query, key, value),
                (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight),
                strict=True,
            )
        ):
            projected = linear(x, weight, None)
            if bias is not None:
                projected = projected + _shift(layer, x, bias)[..., place * width : (place + 1) * width]
            outputs.append(projected)
        return tuple(outputs)
    if shared:
        return torch.split(linear(query, module.in_proj_weight, bias), width, -1)
    # Each input goes through the whole stacked matrix; the parts that are not its own carry no gradient.
    return tuple(
        torch.split(linear(x, module.in_proj_weight, bias), width, -1)[place]
        for place, x in enumerate((query, key, value))
    )


def _shift(layer: WatchedLayer, x: Tensor, bias: Tensor) -> Tensor:
    """A bias alone, one copy per position, watched."""

    def gradients(_: Tensor, b: Tensor) -> tuple[Tensor]:
        return (b.sum(1).view(len(b), *bias.shape),)

    return layer.recorder.direct(x, bias.expand(*x.shape[:-1], -1).clone(), (bias,), gradients)


def _mask(
    module: nn.MultiheadAttention,
    attn_mask: Tensor | None,
    padding: Tensor | None,
    examples: int,
    targets: int,
    sources: int,
    like: Tensor,
) -> Tensor | None:
    """One additive mask (examples, heads, targets, sources) or something that broadcasts to it."""
    total: Tensor | None = None
    if attn_mask is not None:
        total = _additive(attn_mask, like)
        if total.dim() == 3:
            total = total.view(examples, module.num_heads, targets, sources)
    if padding is not None:
        hidden = _additive(padding, like).view(examples, 1, 1, sources)
        total = hidden if total is None else total + hidden
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
