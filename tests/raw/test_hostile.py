"""Examples made to break the bound: positions that cancel, numbers that underflow, sums that round one way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raw.comparison import weighted
from tacit.losses import Loss
from tacit.plan.sources import Statistic
from tacit.raw.clipping import Clipper
from tacit.raw.inspector import Inspections
from tacit.support import Support

Batch = tuple[Tensor, Tensor]


def moved(
    model: nn.Module,
    loss: Loss,
    others: Batch,
    odd: Batch,
    support: Support | None = None,
    clip_norm: float = 1.0,
    statistic: Statistic = "gradient",
) -> float:
    """How far one odd example moves the clipped sum, in units of the stated sensitivity."""
    support = Support.all(model) if support is None else support
    clipper = Clipper(model, loss, inspections=Inspections(0))  # which looks at the sixth step next
    both = tuple(torch.cat(parts) for parts in zip(others, odd, strict=True))
    # The model is looked at with ordinary examples first, as in a run.
    less, full = (
        clipper.clipped_sum([batch], support, clip_norm, statistic=statistic) for batch in (others, both)
    )
    square = sum(
        float((full.values[n].double() - less.values[n].double()).square().sum()) for n in full.values
    )
    return square**0.5 / full.sensitivity


def weighed_output(model: nn.Module, batch: Batch) -> Tensor:
    """A loss whose output gradient is the second part of the batch: whatever the row says."""
    return (model(batch[0]) * batch[1]).flatten(1).sum(1)


def cancelling(shape: tuple[int, ...], outputs: tuple[int, ...], spread: float) -> Batch:
    """Inputs that hardly differ between positions, output gradients that sum to zero over them."""
    dims = tuple(range(2, len(shape))) if len(shape) > 3 else (1,)
    mean = torch.randn(shape).mean(dims, keepdim=True)
    b = torch.randn(outputs)
    return mean + spread * torch.randn(shape), b - b.mean(dims, keepdim=True)


def kinds(model: nn.Module) -> Iterator[tuple[str, Support]]:
    yield "all", Support.all(model)
    yield "many", Support.random(model, ratio=0.5, seed=0)
    yield "few", Support.random(model, ratio=0.05, seed=0)
    yield "rows", Support.random_rows(model, ratio=0.2, seed=0)
    yield "columns weighted", weighted(model, 1, seed=0)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "linear, ghost norms": (lambda: nn.Linear(300, 300, bias=False), (1, 64, 300), (1, 64, 300)),
    "linear, formed": (lambda: nn.Linear(40, 40, bias=False), (1, 128, 40), (1, 128, 40)),
    "convolution, ghost norms": (
        lambda: nn.Conv2d(128, 128, 3, padding=1, bias=False),
        (1, 128, 6, 6),
        (1, 128, 6, 6),
    ),
    "convolution, kept": (lambda: nn.Conv2d(4, 6, 3, padding=1, bias=False), (1, 4, 9, 9), (1, 6, 9, 9)),
    "convolution in groups": (
        lambda: nn.Conv2d(96, 96, 3, padding=1, groups=2, bias=False),
        (1, 96, 5, 5),
        (1, 96, 5, 5),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_positions_that_cancel_do_not_escape_the_clip(name: str) -> None:
    torch.manual_seed(0)
    make, shape, outputs = LAYERS[name]
    model = make()
    others = (torch.randn(3, *shape[1:]), torch.randn(3, *outputs[1:]) * 1e-3)
    for spread in (1e-7, 1e-4):
        for scale in (1.0, 1e6):
            x, b = cancelling(shape, outputs, spread)
            for kind, support in kinds(model):
                found = moved(model, weighed_output, others, (x * scale, b), support)
                assert found <= 1, f"{kind}, spread {spread}, scale {scale}"


def test_an_odd_input_alone_does_not_escape_the_clip() -> None:
    """A classifier over a mean of positions: the labels are ordinary, one input is not."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(256, 256), nn.Linear(256, 5)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.head(torch.relu(self.inner(x).mean(1)))
            return hidden

    torch.manual_seed(0)
    model, loss = Pooled(), lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none")
    others = (torch.randn(3, 64, 256), torch.randint(5, (3,)))
    for scale in (1e2, 1e5, 1e8):
        pairs = torch.randn(1, 32, 256) * scale
        odd = (torch.cat([pairs, -pairs + torch.randn(1, 32, 256)], 1), torch.zeros(1, dtype=torch.int64))
        assert moved(model, loss, others, odd) <= 1


def test_autocast_around_a_step_lets_no_example_escape_the_clip() -> None:
    """Squares, their sums and products that bfloat16 all rounds down: a norm would be too small by a 170th."""
    inputs, outputs = 400, 33
    model = nn.Linear(inputs, outputs, bias=False)
    active = torch.arange(outputs)[:, None] * inputs + torch.arange(257)
    support = Support.of_coordinates(model, {"weight": active.flatten()})
    value = (1 + 2.0**-8 - 2.0**-20) ** 0.5
    others = (torch.zeros(2, inputs), torch.zeros(2, outputs))
    odd = (torch.full((1, inputs), value), torch.full((1, outputs), value))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert moved(model, weighed_output, others, odd, support, 1e-3) <= 1


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    "scales", [(1e-24, 1e24), (1e-30, 1e30), (1e-40, 1e38), (1e-44, 1e38), (1e30, 1e-30)]
)
def test_squares_that_underflow_are_counted(scales: tuple[float, float], flushed: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(60, 30, bias=False)
    others = (torch.randn(2, 60), torch.randn(2, 30) * 1e-3)
    odd = (torch.randn(1, 60) * scales[0], (torch.randn(1, 30) * scales[1]).clamp(-3e38, 3e38))
    try:
        torch.set_flush_denormal(flushed)
        for kind, support in kinds(model):
            for clip_norm in (1e-3, 1.0):
                assert moved(model, weighed_output, others, odd, support, clip_norm) <= 1, kind
    finally:
        torch.set_flush_denormal(False)


def test_squares_that_underflow_in_double_precision_are_counted() -> None:
    torch.manual_seed(0)
    model = nn.Linear(60, 30, bias=False).double()
    others = (torch.randn(2, 60).double(), torch.randn(2, 30).double() * 1e-3)
    odd = (torch.randn(1, 60).double() * 1e-180, torch.randn(1, 30).double() * 1e180)
    for kind, support in kinds(model):
        assert moved(model, weighed_output, others, odd, support) <= 1, kind


@pytest.mark.parametrize("count", [4096, 65536])
def test_sums_of_many_examples_that_point_one_way_stay_within_the_sensitivity(count: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(40, 24, bias=False)
    x = (torch.rand(1, 40) + 1e-3 * torch.rand(count, 40), torch.rand(1, 24) + 1e-3 * torch.rand(count, 24))
    assert moved(model, weighed_output, (x[0][1:], x[1][1:]), (x[0][:1], x[1][:1])) <= 1


@pytest.mark.parametrize("statistic", ["absolute", "row-norms"])
def test_other_statistics_are_bounded_alike(statistic: Statistic) -> None:
    torch.manual_seed(0)
    model = nn.Linear(300, 300, bias=False)
    others = (torch.randn(3, 64, 300), torch.randn(3, 64, 300) * 1e-3)
    for scale in (1.0, 1e6):
        x, b = cancelling((1, 64, 300), (1, 64, 300), 1e-6)
        assert moved(model, weighed_output, others, (x * scale, b), statistic=statistic) <= 1


def test_a_weight_used_in_two_layers_is_bounded_as_a_whole() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 64)
            self.head = nn.Linear(64, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.table(ids)
            logits: Tensor = self.head(hidden)
            return logits

    torch.manual_seed(0)
    model = Tied()
    others = (torch.randint(20, (3, 40)), torch.randn(3, 40, 20) * 1e-3)
    for scale in (1.0, 1e4, 1e8):
        b = torch.randn(1, 40, 20) * scale
        odd = (torch.zeros(1, 40, dtype=torch.int64), b - b.mean(1, keepdim=True))
        assert moved(copy.deepcopy(model), weighed_output, others, odd) <= 1


def test_ordinary_examples_keep_their_weight() -> None:
    """The bounds cost ordinary data nothing: clipped sums are those of exact arithmetic to 1e-5."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300))
    x, b = torch.randn(8, 64, 300), torch.randn(8, 64, 300)
    found = Clipper(model, weighed_output).clipped_sum([(x, b)], Support.all(model), 1.0)
    precise = copy.deepcopy(model).double()
    expected = Clipper(precise, weighed_output).clipped_sum(
        [(x.double(), b.double())], Support.all(precise), 1.0
    )
    for name, value in found.values.items():
        torch.testing.assert_close(value.double(), expected.values[name], rtol=0, atol=1e-5 * 8)


@pytest.mark.parametrize("statistic", ["gradient", "absolute", "row-norms"])
def test_gradients_beyond_single_precision_leave_the_sum_finite(statistic: Statistic) -> None:
    torch.manual_seed(0)
    model = nn.Linear(300, 300, bias=False)
    others = (torch.randn(3, 64, 300), torch.randn(3, 64, 300) * 1e-3)
    odd = (torch.randn(1, 64, 300) * 1e20, torch.randn(1, 64, 300) * 1e20)
    assert moved(model, weighed_output, others, odd, statistic=statistic) <= 1
