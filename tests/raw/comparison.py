"""Tacit's clipped sums and norms against brute force, for any model."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle import Loss, assert_close, clipped_sum, per_example_gradients
from tacit.raw.clipping import Clipper
from tacit.support import Block, Support


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def supports(model: nn.Module) -> list[Support]:
    """All coordinates, scattered ones, whole rows, and weights along either of the first two dimensions."""
    return [
        Support.all(model),
        Support.random(model, ratio=0.3, seed=1),
        Support.random_rows(model, ratio=0.5, seed=2),
        *(weighted(model, axis, seed=3) for axis in (0, 1)),
    ]


def weighted(model: nn.Module, axis: int, seed: int) -> Support:
    """Random weights along a dimension of every parameter that has it, and plain coordinates elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    return Support(
        {
            name: Block.weighted(p.shape, torch.rand(p.shape[axis], generator=generator) * 0.9 + 0.1, axis)
            if p.dim() > axis
            else Block.all(p.shape)
            for name, p in model.named_parameters()
            if p.requires_grad
        }
    )


def assert_exact(
    model: nn.Module, batch: Any, loss: Loss = cross_entropy, *, tolerance: float = 1e-10, views: int = 1
) -> None:
    """Clipped sums (some examples clipped, some not) and norms on every kind of support."""
    gradients = per_example_gradients(model, loss, batch, views)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        clipper = Clipper(model, loss, views=views)
        for support in supports(model):
            norms = clipped_sum(gradients, support, 1.0)[1]
            clip_norm = float(norms.median().clamp(min=1e-3))
            expected, _ = clipped_sum(gradients, support, clip_norm)
            assert_close(clipper.clipped_sum([batch], support, clip_norm).values, expected, tolerance)
            torch.testing.assert_close(clipper.norms(batch, support), norms, rtol=tolerance, atol=1e-12)


def traces(model: nn.Module) -> dict[str, Any]:
    """Everything that watching a model might leave behind."""
    return {
        "class": type(model),
        "keys": list(model.state_dict()),
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": [
            len(hooks)
            for module in model.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        ],
        "trained": [p.requires_grad for p in model.parameters()],
        "gradients": [p.grad is None for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }
