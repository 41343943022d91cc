"""The same sums by Opacus, in each of its modes. fastDP is not on PyPI, so it is not among them."""

from __future__ import annotations

from typing import Any

import torch

from tools.attack.measuring import Values
from tools.attack.settings import Setting
from tools.attack.targets import Target, model_of

MODES = ("hooks", "functorch", "ew", "ghost")

ALLOWANCE = 1e-4
"""Opacus states no allowance for rounding; it is given the one that Tacit had in version 0.1: C · (1 + 1e-4)."""


class Opacus:
    """Opacus's clipped sums for one target and mode, from its own optimizers before noise is added."""

    def __init__(self, target: Target, mode: str) -> None:
        self._target, self._mode = target, mode
        self._models: dict[str, Any] = {}

    def sum(self, chunks: list[Any], setting: Setting) -> tuple[Values, float]:
        """The clipped sum over chunks, and C with the allowance."""
        (batch,) = chunks
        model = self._model(setting.dtype)
        make = self._ghost if self._mode == "ghost" else self._per_example
        return make(model, batch, setting.clip_norm), setting.clip_norm * (1 + ALLOWANCE)

    def _model(self, dtype: str) -> Any:
        from opacus.grad_sample.utils import prepare_module

        if dtype not in self._models:
            model = model_of(self._target, getattr(torch, dtype)).train()
            extra = {"max_grad_norm": 1.0} if self._mode == "ghost" else {}
            self._models[dtype] = prepare_module(model, self._mode, loss_reduction="sum", **extra)
        return self._models[dtype]

    def _per_example(self, model: Any, batch: Any, clip_norm: float) -> Values:
        from opacus.optimizers import DPOptimizer

        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=clip_norm,
            expected_batch_size=None,
            loss_reduction="sum",
        )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._target.loss(model, batch).sum())
        optimizer.clip_and_accumulate()
        summed = {n: p.summed_grad.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        optimizer.zero_grad(set_to_none=True)
        return summed

    def _ghost(self, model: Any, batch: Any, clip_norm: float) -> Values:
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        model.max_grad_norm = clip_norm
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(model.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=clip_norm,
            expected_batch_size=None,
            loss_reduction="sum",
        )
        optimizer.zero_grad(set_to_none=True)
        losses = self._target.loss(model, batch)
        DPTensorFastGradientClipping(model, optimizer, losses, loss_reduction="sum").backward()
        optimizer.accumulate()
        summed = {n: p.summed_grad.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        optimizer.zero_grad(set_to_none=True)
        return summed
