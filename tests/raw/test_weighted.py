"""Weighted supports against brute force, one layer kind at a time; ``supports`` of the comparison holds them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from raw.comparison import assert_exact


class Tied(nn.Module):
    """One table as embedding and, transposed in its role, as output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.out = nn.Linear(4, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids).tanh().mean(1))


class Scale(nn.Module):
    """A matrix without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.matrix).sin()


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "positions": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(28, 3)), (7, 6)),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
        (6, 5, 5),
    ),
    "no rule": (lambda: nn.Sequential(Scale(), nn.Linear(6, 3)), (4,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_reach_norms_and_sums(name: str) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    x = torch.randn(5, *shape, dtype=torch.float64)
    assert_exact(build().double(), (x, torch.randint(0, 3, (5,))))


def test_weights_of_a_tied_table_reach_both_uses() -> None:
    torch.manual_seed(0)
    assert_exact(Tied().double(), (torch.randint(0, 9, (5, 3)), torch.randint(0, 9, (5,))))
