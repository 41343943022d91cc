"""Opacus in each of its gradient modes, as its PrivacyEngine would set them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.contenders.types import Contender, Family, Step, StepSettings
from benchmarks.workloads import Batch, Workload


def build_per_example(mode: str) -> Callable[[nn.Module, Batch, Workload, StepSettings], Step]:
    """The modes that materialise every per-example gradient: hooks, functorch, ew (expanded weights)."""

    def build(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
        from opacus.grad_sample.utils import prepare_module
        from opacus.optimizers import DPOptimizer

        wrapped = prepare_module(model, mode)
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=settings.learning_rate),
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.clip_norm,
            expected_batch_size=len(batch[0]),
        )

        def step() -> None:
            optimizer.zero_grad()
            torch.autograd.backward(workload.loss(wrapped, batch).mean())
            optimizer.step()

        return step

    return build


def build_ghost(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
    """Ghost clipping: norms in a first backward, the clipped sum in a second."""
    from opacus.grad_sample.utils import prepare_module
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    wrapped: Any = prepare_module(model, "ghost", max_grad_norm=settings.clip_norm)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=settings.learning_rate),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.clip_norm,
        expected_batch_size=len(batch[0]),
    )

    def step() -> None:
        optimizer.zero_grad()
        DPTensorFastGradientClipping(wrapped, optimizer, workload.loss(wrapped, batch)).backward()
        optimizer.step()

    return step


_MODES = {
    "hooks": ("Opacus hooks", build_per_example("hooks")),
    "functorch": ("Opacus functorch", build_per_example("functorch")),
    "ew": ("Opacus ew", build_per_example("ew")),
    "ghost": ("Opacus ghost", build_ghost),
}

OPACUS = tuple(
    contender
    for mode, (title, build) in _MODES.items()
    for contender in (
        Contender(f"opacus-{mode}", title, Family.OPACUS, build),
        Contender(
            f"opacus-{mode}-cl",
            f"{title}, channels_last",
            Family.OPACUS,
            build,
            channels_last=True,
            only_convolutional=True,
        ),
    )
)
