"""Sums of clipped losses over examples: exact, and bounded for every example."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.losses import binary_cross_entropy
from tacit.raw.clipping import Clipper
from tacit.raw.losses import STEPS, _losses, loss_vectors
from tacit.raw.units import UnitBatch

CANDIDATES = [
    {"weight": torch.tensor([[0.5, -1.0]]), "bias": torch.tensor([0.1])},
    {"weight": torch.tensor([[3.0, 2.0]]), "bias": torch.tensor([-1.0])},
    {"weight": torch.tensor([[0.0, 0.0]]), "bias": torch.tensor([0.0])},
]


def batch(rows: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = scale * torch.randn(rows, 2, generator=generator)
    return x, torch.randint(0, 2, (rows,), generator=generator).float()


def stacked() -> dict[str, Tensor]:
    return {name: torch.stack([one[name].double() for one in CANDIDATES]) for name in CANDIDATES[0]}


def sums(*chunks: tuple[Tensor, Tensor] | UnitBatch, clip_norm: float = 1.0) -> Tensor:
    return loss_vectors(nn.Linear(2, 1), binary_cross_entropy, CANDIDATES, chunks, clip_norm)


@pytest.mark.parametrize("clip_norm", [0.01, 0.7, 100.0])
def test_the_sum_is_that_of_examples_clipped_one_by_one(clip_norm: float) -> None:
    x, y = batch(50)
    expected = torch.zeros(3, dtype=torch.float64)
    for row, target in zip(x.double(), y.double(), strict=True):
        losses = []
        for candidate in CANDIDATES:
            z = float(row @ candidate["weight"][0].double() + candidate["bias"].double())
            losses.append(math.log1p(math.exp(z)) - float(target) * z)
        apart = torch.tensor(losses, dtype=torch.float64)
        apart -= apart.mean()
        expected += apart * min(1.0, clip_norm / float(apart.norm()))
    found = sums((x[:20], y[:20]), (x[20:], y[20:]), clip_norm=clip_norm)
    assert torch.allclose(found, expected, atol=50 * clip_norm / STEPS)


@pytest.mark.parametrize(
    "odd", [[1.0, 2.0], [1e6, -1e6], [3e38, 3e38], [math.inf, 0.0], [math.nan, 0.0], [1e-40, 0.0]]
)
def test_no_example_changes_the_sum_by_more_than_the_clip_norm(odd: list[float]) -> None:
    x, y = batch(30)
    without = sums((x, y), clip_norm=0.25)
    for target in (0.0, 1.0):
        with_it = sums(
            (torch.cat([x, torch.tensor([odd])]), torch.cat([y, torch.tensor([target])])), clip_norm=0.25
        )
        assert float((with_it - without).norm()) <= 0.25
        if not all(math.isfinite(value) for value in odd):
            assert torch.equal(with_it, without)


def test_the_sum_does_not_depend_on_the_order_of_examples_or_on_chunks() -> None:
    x, y = batch(101, scale=1e3)
    order = torch.randperm(101)
    assert torch.equal(sums((x, y)), sums((x[order][:7], y[order][:7]), (x[order][7:], y[order][7:])))


def grouped(x: Tensor, y: Tensor, ids: list[int]) -> UnitBatch:
    return UnitBatch((x, y), ids)


@pytest.mark.parametrize("clip_norm", [0.01, 0.7, 100.0])
def test_a_unit_adds_the_mean_of_its_losses_clipped_once(clip_norm: float) -> None:
    x, y = batch(40)
    ids = [min(int(place**0.5), 5) for place in range(40)]  # units of 1, 3, 5, 7, 9 and 15 examples
    each = _losses(nn.Linear(2, 1).double(), binary_cross_entropy, stacked(), (x, y))
    expected = torch.zeros(3, dtype=torch.float64)
    for unit in range(6):
        mean = each[[place for place in range(40) if ids[place] == unit]].mean(0)
        mean = mean - mean.mean()
        expected += mean * min(1.0, clip_norm / float(mean.norm()))
    found = sums(grouped(x[:16], y[:16], ids[:16]), grouped(x[16:], y[16:], ids[16:]), clip_norm=clip_norm)
    assert torch.allclose(found, expected, atol=10 * clip_norm / STEPS)


@pytest.mark.parametrize("odd", [[1.0, 2.0], [1e6, -1e6], [3e38, 3e38], [math.inf, 0.0], [math.nan, 0.0]])
def test_no_unit_changes_the_sum_by_more_than_the_clip_norm(odd: list[float]) -> None:
    x, y = batch(30)
    own = torch.tensor([odd, [0.1, -0.2], [5.0, 5.0]])
    without = sums(grouped(x, y, [place // 2 for place in range(30)]), clip_norm=0.25)
    for target in (0.0, 1.0):
        everyone = grouped(
            torch.cat([x, own]),
            torch.cat([y, torch.full((3,), target)]),
            [place // 2 for place in range(30)] + [99] * 3,
        )
        assert float((sums(everyone, clip_norm=0.25) - without).norm()) <= 0.25


def test_a_unit_in_two_chunks_is_refused() -> None:
    x, y = batch(4)
    clipper = Clipper(nn.Linear(2, 1), binary_cross_entropy, seed=0)
    with pytest.raises(ModelError, match="same unit"):
        clipper.loss_sum([grouped(x, y, [1, 1, 2, 2]), grouped(x, y, [2, 3, 3, 3])], CANDIDATES, 0.5)


def test_losses_of_an_example_do_not_depend_on_its_company() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.line(x - x.mean(0))
            return found

    model = Mixing()
    candidates = [{f"line.{name}": value for name, value in one.items()} for one in CANDIDATES]
    x, y = batch(10)
    whole = loss_vectors(model, binary_cross_entropy, candidates, [(x, y)], 1.0)
    alone = loss_vectors(
        model, binary_cross_entropy, candidates, [(x[i : i + 1], y[i : i + 1]) for i in range(10)], 1.0
    )
    assert torch.equal(whole, alone)


def test_the_clipper_states_the_sensitivity_and_keeps_the_model() -> None:
    model = nn.Linear(2, 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = Clipper(model, binary_cross_entropy, seed=0).loss_sum([batch(5)], CANDIDATES, 0.5)
    assert found.size == 3
    assert found.clip_norm == 0.5 < found.sensitivity < 0.5001
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


def test_batches_that_are_no_tensors_are_refused() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, list[str]]) -> Tensor:
        return model(batch[0]).flatten()

    with pytest.raises(ModelError, match="leave tuning out"):
        loss_vectors(nn.Linear(2, 1), loss, CANDIDATES, [(torch.zeros(1, 2), ["a"])], 1.0)
