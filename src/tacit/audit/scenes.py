"""Small models with hostile rows: what a stand-in with one position and no randomness cannot show.

Every scene has a model, a few ordinary rows and odd ones that an attacker may choose from: gradients whose
positions cancel, values at the ends of single precision, lengths that change the order of a batch. The loss of most
is linear, ⟨model(x), y⟩, so y is the gradient at the output and an odd row needs no knowledge of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.losses import Loss
from tacit.support import Block, Support

Row = tuple[Tensor, ...]


@dataclass(frozen=True)
class Scene:
    """A model, the rows that are always there, and the rows of which the attacker adds one.

    ``rows`` and each of ``odd`` are batches, whose tensors hold examples in dimension 0.
    """

    name: str
    model: nn.Module
    loss: Loss
    rows: Row
    odd: Sequence[Row]
    support: Support
    clip_norm: float = 1.0


def linear_loss(model: nn.Module, batch: Row) -> Tensor:
    """⟨model(x), y⟩ of every example, with all further inputs given to the model."""
    *inputs, wanted = batch
    found: Tensor = (model(*inputs) * wanted).flatten(1).sum(1)
    return found


def scenes() -> list[Scene]:
    """All of them, always the same."""
    with torch.random.fork_rng(devices=[]):
        made = []
        for number, make in enumerate(SCENES):
            torch.manual_seed(number)
            made.append(make())
        return made


def _positions(
    name: str, support: Callable[[nn.Module], Support], positions: int = 16, width: int = 64
) -> Scene:
    model = nn.Linear(width, width, bias=False)
    rows = torch.randn(8, positions, width), torch.randn(8, positions, width)
    odd = [
        (x[None, :, None] * torch.randn(width), y[None, :, None] * torch.randn(width))
        for x, y in _cancelling(positions, torch.ones(positions))
    ]
    return Scene(name, model, linear_loss, rows, [*odd, _large(rows)], support(model))


def _sequence() -> Scene:
    return _positions("cancelling positions", Support.all)


def _coordinates() -> Scene:
    return _positions("cancelling positions, single coordinates", _tenth, 2, 128)


def _soft() -> Scene:
    return _positions("cancelling positions, soft weights", _softened)


def _tenth(model: nn.Module) -> Support:
    return Support.random(model, ratio=0.1, seed=0)


def _softened(model: nn.Module) -> Support:
    return Support({name: _weighted(p.shape) for name, p in model.named_parameters()})


def _weighted(shape: Sequence[int]) -> Block:
    return Block.weighted(shape, torch.logspace(-3, 0, shape[1]), 1)


def _convolution() -> Scene:
    side, channels = 6, 48
    model = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    rows = torch.randn(8, channels, side, side), torch.randn(8, channels, side, side)
    # Output gradients at the rim would meet the padding and not cancel.
    inside = torch.zeros(side, side)
    inside[1:-1, 1:-1] = 1
    odd = [
        (
            x.view(side, side) * torch.randn(1, channels, 1, 1),
            y.view(side, side) * torch.randn(1, channels, 1, 1),
        )
        for x, y in _cancelling(side * side, inside.flatten(), spread=0.0)
    ]
    return Scene("cancelling pixels", model, linear_loss, rows, [*odd, _large(rows)], Support.all(model))


def _extreme() -> Scene:
    inputs, outputs = 512, 64
    model = nn.Linear(inputs, outputs, bias=False)
    rows = torch.randn(8, inputs) * 1e-3, torch.randn(8, outputs) * 1e-3
    sizes = [(2.5e-23, 2e18), (1e-30, 2e18), (1e-40, 2e18), (7e17, 1e-23), (7e17, 1e-40), (1e9, 1e9)]
    odd = [(a * _signs(1, inputs), b * _signs(1, outputs)) for a, b in sizes]
    return Scene("ends of single precision", model, linear_loss, rows, odd, Support.all(model), 1e-3)


def _signs(*shape: int) -> Tensor:
    return torch.randint(2, shape) * 2.0 - 1


def _dropout() -> Scene:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
    rows = torch.randn(8, 16), torch.randn(8, 4)
    odd = [(10 * torch.randn(1, 16), torch.randn(1, 4))]
    return Scene("dropout", model, linear_loss, rows, [*odd, _large(rows)], Support.all(model))


class _Sorted(nn.Module):
    """Works on its batch sorted by length, as code for packed sequences does, and puts the results back in order."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(6, 8)
        self.inner = nn.Linear(8, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        words = self.words(x)
        order = lengths.argsort(descending=True, stable=True)
        there = torch.arange(x.shape[1], device=x.device) < lengths[order, None]
        states = (torch.tanh(self.inner(words[order])) * there[:, :, None]).sum(1)
        return self.head(states[order.argsort()])  # type: ignore[no-any-return]


def _sorted() -> Scene:
    length, model = 9, _Sorted()
    sizes = torch.arange(12) % (length - 1) + 1
    rows = torch.randn(12, length, 6), sizes.sort(descending=True).values, torch.randn(12, 3)
    odd = [
        (size * torch.randn(1, length, 6), torch.tensor([last]), size * torch.randn(1, 3))
        for size in (0.1, 1.0, 10.0)
        for last in (1, 5, length)
    ]
    return Scene("sorted by length", model, linear_loss, rows, [*odd, _large(rows)], Support.all(model))


def _embedding() -> Scene:
    words, width, length = 50, 16, 12
    model = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, width))
    rows = torch.randint(words, (8, length)), torch.randn(8, length, width)
    odd = [
        (torch.full((1, length), 7), y[None, :, None] * torch.randn(width))
        for _, y in _cancelling(length, torch.ones(length), spread=0.0)
    ]
    return Scene("one word that cancels", model, linear_loss, rows, [*odd, _large(rows)], Support.all(model))


def _large(rows: Row) -> Row:
    """A row that is odd only by its size: its gradient is clipped to the clip norm and nothing else."""
    return tuple(100 * part[:1] if part.is_floating_point() else part[:1] for part in rows)


def _cancelling(positions: int, where: Tensor, spread: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """Inputs x and output gradients y per position, in ``where``, whose product sums to almost nothing.

    Almost: a share of 1e-4 to 1e-7 of what they would without cancelling is left, which single precision loses in a
    squared norm and keeps in a sum.
    """
    found = []
    for left, size, _ in itertools.product((1e-4, 1e-5, 1e-7), (1e1, 1e4, 1e7), range(6)):
        x = 1 + spread * torch.rand(positions)
        seen = x * where
        y = torch.randn(positions) * where
        y = y - (y @ seen) / (seen @ seen) * seen
        y = y + left * y.norm() / seen.norm() * seen
        found.append((size * x, size * y))
    return found


SCENES: tuple[Callable[[], Scene], ...] = (
    _sequence,
    _coordinates,
    _soft,
    _convolution,
    _extreme,
    _dropout,
    _sorted,
    _embedding,
)
