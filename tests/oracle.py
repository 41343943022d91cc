"""Brute force: per-example gradients one example at a time, by plain autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.support import Support

Loss = Callable[[nn.Module, Any], Tensor]


def per_example_gradients(model: nn.Module, loss: Loss, batch: Any, views: int = 1) -> dict[str, Tensor]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = pytree.tree_leaves(batch)[0].shape[0]
    found: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for start in range(0, rows, views):
        # Around two errors of torch 2.13: instance_norm has a wrong gradient on a batch of one, so every example
        # comes twice and the first copy counts; group_norm as first layer crashes on channels-last images unless
        # their gradient is asked for.
        twice = pytree.tree_map(lambda t, s=start: torch.cat([t[s : s + views]] * 2), batch)
        leaves, structure = pytree.tree_flatten(twice)
        inputs = [t.requires_grad_() for t in leaves if t.is_floating_point()]
        losses = loss(model, pytree.tree_unflatten([t.clone() for t in leaves], structure))[:views]
        gradients = torch.autograd.grad(losses.mean(), [*parameters.values(), *inputs], allow_unused=True)
        gradients = gradients[: len(parameters)]
        for (name, p), g in zip(parameters.items(), gradients, strict=True):
            found[name].append(torch.zeros_like(p) if g is None else g)
    return {
        name: torch.stack(found[name]) if found[name] else torch.zeros(0, *p.shape, dtype=p.dtype)
        for name, p in parameters.items()
    }


def clipped_sum(
    gradients: dict[str, Tensor],
    support: Support,
    clip_norm: float,
    *,
    statistic: str = "gradient",
    clip_first: bool = False,
) -> tuple[dict[str, Tensor], Tensor]:
    """Mask (or weight), then clip, then sum; and the norms that were clipped."""
    masked = {
        name: g * support[name].scaled(support[name].mask().to(g.dtype)) for name, g in gradients.items()
    }
    clipped = gradients if clip_first else masked
    norms = sum(g.reshape(len(g), math.prod(g.shape[1:])).square().sum(1) for g in clipped.values()).sqrt()
    weights = (clip_norm / norms).clamp(max=1)
    weights = torch.where(norms > 0, weights, torch.ones_like(weights))
    total = {}
    for name, g in masked.items():
        if statistic == "row-norms":
            rows = g.reshape(len(g), g.shape[1] if g.dim() > 1 else 1, math.prod(g.shape[2:]))
            total[name] = (weights[:, None] * rows.square().sum(2).sqrt()).sum(0)
            continue
        g = g.abs() if statistic == "absolute" else g
        total[name] = support[name].gather(torch.einsum("b,b...->...", weights, g))
    return total, norms


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Relative to the size of the whole expected sum."""
    scale = sum(float(e.square().sum()) for e in expected.values()) ** 0.5 + 1e-300
    for name, value in found.items():
        assert value.shape == expected[name].shape, name
        error = float((value - expected[name]).norm())
        assert error <= tolerance * scale + 1e-13, f"{name}: {error / scale:.1e} relative error"
