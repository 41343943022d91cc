"""One row more or less moves the clipped sum by at most the sensitivity: rows made to break it, in any precision."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fuzz.effort import tries
from raw.comparison import weighted
from tacit.raw.clipping import ClippedSum, Clipper
from tacit.raw.inspector import Inspections
from tacit.support import Support


@dataclass(frozen=True)
class Problem:
    """A model, the shapes of one input and one output gradient, and where the positions are in both."""

    model: nn.Module
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    positions: tuple[int, ...]
    words: int = 0


class Pooled(nn.Module):
    """A layer over positions, their mean, and a head: positions cancel on their way back."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.layer(x).mean(1)))


def product(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """⟨model(x), y⟩: the gradient at the output is whatever y says."""
    return (model(batch[0]) * batch[1]).flatten(1).sum(1)


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().flatten(1).mean(1)


def problem_of(random: Random) -> Problem:
    """Layers with one position and with many, wide and narrow: every way in which norms are computed."""
    torch.manual_seed(random.randrange(2**20))
    length = random.choice([1, 2, 4, 16, 16, 32])
    width, out = random.choice([3, 64, 128, 128]), random.choice([2, 64, 128, 128])
    bias = random.random() < 0.5
    match random.choice(
        ["linear", "linear", "linear", "stack", "pooled", "convolution", "depthwise", "words", "norm"]
    ):
        case "linear":
            return Problem(nn.Linear(width, out, bias=bias), (length, width), (length, out), (0,))
        case "stack":
            model = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, out, bias=bias))
            return Problem(model, (length, width), (length, out), (0,))
        case "pooled":
            return Problem(Pooled(nn.Linear(width, out, bias=bias), out), (length, width), (5,), (0,))
        case "convolution":
            channels, kernel, side = random.choice([3, 48]), random.choice([1, 3]), random.choice([2, 6])
            layer = nn.Conv2d(channels, 48, kernel, padding=kernel // 2, bias=bias)
            return Problem(layer, (channels, side, side), (48, side, side), (1, 2))
        case "depthwise":
            layer = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=bias)
            return Problem(layer, (8, 6, 6), (8, 6, 6), (1, 2))
        case "words":
            return Problem(nn.Embedding(20, out), (length,), (length, out), (0,), words=20)
        case _:
            model = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out, bias=bias))
            return Problem(model, (length, width), (length, out), (0,))


HOSTILE = [
    *[(10.0**n, 10.0**m) for n in (2, 4, 8) for m in (2, 4, 8)],
    *[(tiny, 2e18) for tiny in (2.5e-23, 1e-30, 1e-42)],
    *[(1e18, tiny) for tiny in (2.5e-23, 1e-30, 1e-42)],
    (1e-3, 1e-3),
    (1e30, 1.0),
]
"""Sizes of inputs and of output gradients: far above the clip norm, and where squares overflow or vanish."""


def rows_of(problem: Problem, count: int, random: Random) -> tuple[Tensor, Tensor]:
    """Ordinary rows."""
    generator = torch.Generator().manual_seed(random.randrange(2**20))
    x = torch.randn(count, *problem.inputs, generator=generator)
    y = torch.randn(count, *problem.outputs, generator=generator)
    return (torch.randint(problem.words, x.shape, generator=generator) if problem.words else x), y


def odd_row_of(problem: Problem, random: Random) -> tuple[Tensor, Tensor]:
    """A row with positions that cancel, with signs only, or nearly empty; at sizes that no data has."""
    x, y = rows_of(problem, 1, random)
    generator = torch.Generator().manual_seed(random.randrange(2**20))
    match random.choice(["random", "cancelling", "cancelling", "cancelling", "signs", "empty"]):
        case "cancelling" if problem.words or len(problem.inputs) == len(problem.outputs):
            x, y = cancelling(problem, x, y, random, generator)
        case "signs":
            x, y = x.sign(), y.sign()
        case "empty":
            x, y = (t * (torch.rand(t.shape, generator=generator) < 0.02).to(t.dtype) for t in (x, y))
    inputs, outputs = random.choice(HOSTILE)
    return (x if problem.words else x * inputs), y * outputs


def cancelling(
    problem: Problem, x: Tensor, y: Tensor, random: Random, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One direction at the input and one at the output for all positions, whose products sum to almost nothing."""
    axes = tuple(1 + axis for axis in problem.positions)
    sizes = [y.shape[a] if a in axes else 1 for a in range(1, y.dim())]
    along = torch.randn(len(y), *sizes, generator=generator)
    scale = 1 + random.choice([0.0, 1.0, 1.0]) * torch.rand(along.shape, generator=generator)
    along = along - (along * scale).sum(axes, keepdim=True) / scale.square().sum(axes, keepdim=True) * scale
    along = along + random.choice([0.0, 1e-7, 1e-5, 3e-5, 1e-4]) * scale
    x = torch.full_like(x, 3) if problem.words else x.mean(axes, keepdim=True) * scale
    return x, y.mean(axes, keepdim=True) * along


def support_of(model: nn.Module, random: Random) -> Support:
    """Everything, single coordinates, rows, soft weights."""
    seed = random.randrange(2**20)
    match random.choice(["all", "all", "half", "sparse", "rows", "soft"]):
        case "all":
            return Support.all(model)
        case "half":
            return Support.random(model, ratio=0.5, seed=seed)
        case "sparse":
            return Support.random(model, size=max(1, Support.all(model).dimension // 10), seed=seed)
        case "rows":
            return Support.random_rows(model, ratio=0.5, seed=seed)
        case _:
            return weighted(model, random.randrange(2), seed)


@tries(60)
@given(st.integers(0, 2**32))
def test_no_row_however_odd_moves_the_sum_by_more_than_the_sensitivity(seed: int) -> None:
    random = Random(seed)
    problem = problem_of(random)
    dtype = random.choice([torch.float32, torch.float32, torch.float64])
    model = problem.model.to(dtype)
    statistic = random.choice(["gradient", "gradient", "absolute", "row-norms"])
    support = support_of(model, random) if statistic != "row-norms" else Support.all(model)
    order = random.choice(["mask-then-clip", "clip-then-mask"])
    clip_norm = random.choice([1e-3, 1.0, 50.0])
    clipper = Clipper(model, random.choice([product, product, squared]), inspections=Inspections(0))

    def clipped(*rows: tuple[Tensor, ...]) -> ClippedSum:
        joined = tuple(torch.cat(parts) for parts in zip(*rows, strict=True))
        batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in joined)
        return clipper.clipped_sum([batch], support, clip_norm, statistic=statistic, clip_order=order)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        usual = rows_of(problem, random.choice([3, 6]), random)
        less = clipped(usual)
        for _ in range(24):
            odd = odd_row_of(problem, random)
            full = clipped(*random.sample([usual, odd], 2))
            moved = sum(
                float((full.values[name].double() - less.values[name].double()).square().sum())
                for name in full.values
            )
            assert moved**0.5 <= full.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("swapped", [False, True])
def test_products_that_round_to_each_other_do_not_hide_a_gradient(ratio: float, swapped: bool) -> None:
    """(1 + 2⁻¹²)² − (1 + 2⁻¹¹) is 2⁻²⁴, and 0 where the square is rounded to single precision first."""
    torch.manual_seed(0)
    model = nn.Linear(128, 128, bias=False)
    support = Support.all(model) if ratio == 1 else Support.random(model, ratio=ratio, seed=0)
    signs = torch.randint(2, (2, 128)) * 2.0 - 1
    x = torch.tensor([1 + 2.0**-12, 1 + 2.0**-11])[None, :, None] * signs[0] * 1e8
    y = torch.tensor([1 + 2.0**-12, -1.0])[None, :, None] * signs[1] * 1e8
    usual = torch.randn(4, 2, 128), torch.randn(4, 2, 128)
    odd = (x.flip(1), y.flip(1)) if swapped else (x, y)
    clipper = Clipper(model, product, inspections=Inspections(0))
    less = clipper.clipped_sum([usual], support, 1.0)
    full = clipper.clipped_sum(
        [tuple(torch.cat(pair) for pair in zip(usual, odd, strict=True))], support, 1.0
    )
    moved = (full.values["weight"].double() - less.values["weight"].double()).norm()
    assert float(moved) <= full.sensitivity
