"""One family of models: how to build a small instance, its loss and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Instance:
    """A model, a loss that gives one value per example, and batches of any size (the seed tells them apart)."""

    model: nn.Module
    loss: Loss
    batch: Callable[[int, int], Any]


@dataclass(frozen=True)
class Family:
    """A row of the table.

    ``refused`` is set where no per-example gradient exists, or none that Tacit finds: words that its sentence must
    contain. ``tolerance`` is the relative error up to which sums count as exact; more than 1e-9 only where the model
    itself does not compute in double precision. ``autocast`` is given to Tacit alone.
    """

    name: str
    build: Callable[[], Instance]
    refused: str = ""
    tolerance: float = 1e-9
    autocast: torch.dtype | None = None
    needs: str = ""


def labelled(*shape: int, classes: int = 3) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Batches of normal numbers and labels."""

    def batch(rows: int, seed: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(1000 + seed)
        x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64)
        return x, torch.randint(classes, (rows,), generator=draw)

    return batch


def tokens(
    length: int = 6, vocabulary: int = 17, *, classes: int = 3
) -> Callable[[int, int], dict[str, Tensor]]:
    """Batches of token ids with padding and labels."""

    def batch(rows: int, seed: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(1000 + seed)
        ids = torch.randint(2, vocabulary, (rows, length), generator=draw)
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        mask[-1, -1:] = 0
        return {
            "input_ids": ids * mask,
            "attention_mask": mask,
            "labels": torch.randint(classes, (rows,), generator=draw),
        }

    return batch


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Of a classifier."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def classified(model: nn.Module, *shape: int) -> Instance:
    """A classifier of normal numbers, in double precision and training mode."""
    return Instance(model.double().train(), cross_entropy, labelled(*shape))


class Squares(nn.Module):
    """A module that pools what it is given into three logits: (rows, …, features) to (rows, 3)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        while x.dim() > 2:
            x = x.mean(1)
        logits: Tensor = self.head(x)
        return logits
