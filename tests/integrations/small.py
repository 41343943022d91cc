"""A small model, its data and its plan, for both frameworks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tacit

EXAMPLES, FEATURES = 60, 6


def plan(epsilon: float = 5.0) -> tacit.Plan:
    return tacit.make_plan(
        "tp-topk",
        epsilon=epsilon,
        delta=1e-3,
        examples=EXAMPLES,
        batch_size=12,
        epochs=2,
        active_ratio=0.5,
        accountant="rdp",
    )


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator)
    return x, (x[:, 0] > 0).long()


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 2))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Remembering(nn.Dropout):
    """Dropout that notes its masks in a list outside of the model."""

    def forward(self, x: Tensor) -> Tensor:
        MASKS.append(tuple(super().forward(torch.ones(64)).tolist()))
        return super().forward(x)


MASKS: list[tuple[float, ...]] = []
