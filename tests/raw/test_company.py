"""What one example holds, or how long it is, changes nothing about what others add to a sum."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.raw.clipping import Clipper, Clipping
from tacit.raw.gradients import Convolution, Embedding, convolution
from tacit.raw.gradients.compiled import available
from tacit.raw.gradients.convolution import Geometry
from tacit.raw.units import UnitBatch
from tacit.support import Block, Support


class Looked(nn.Module):
    """Two tables and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.other, self.head = nn.Embedding(50, 4), nn.Embedding(50, 4), nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(ids).mean(1) + self.other(ids).sum(1))
        return out.squeeze(1)


def squared(model: nn.Module, batch: Any) -> Tensor:
    *inputs, target = batch
    out: Tensor = model(*inputs)
    return (out - target) ** 2


def counts(ids: Tensor, target: Tensor, units: list[int] | None) -> tuple[Tensor, float]:
    model = Looked()
    batch: Any = (ids, target) if units is None else UnitBatch((ids, target), units)
    found = Clipper(model, squared).clipped_sum([batch], Support.all(model), 1.0, statistic="row-counts")
    return torch.cat(list(found.values.values())), found.sensitivity


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("odd", [math.inf, math.nan, 1e38])
def test_an_example_without_a_gradient_looks_nothing_up(odd: float, grouped: bool) -> None:
    """Another one stands in its place, and would be counted once more for each of them."""
    ids = torch.tensor([[1, 1], [2, 2], *[[3, 3]] * 10])
    target = torch.tensor([0.0, 1.0, *[odd] * 10])
    units = [0, 1, *(2 + place // 2 for place in range(10))] if grouped else None
    whole, sensitivity = counts(ids, target, units)
    without, _ = counts(ids[1:], target[1:], None if units is None else units[1:])
    assert float((whole - without).norm()) <= sensitivity


class Positions(nn.Module):
    """A matrix at every position, a mean over those that an example has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Linear(256, 256, bias=False)
        self.head = nn.Linear(256, 1).requires_grad_(False)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        real = (torch.arange(x.shape[1]) < length[:, None]).unsqueeze(-1)
        out: Tensor = self.head((self.matrix(x) * real).sum(1) / length[:, None])
        return out.squeeze(1)


def cancelling(rows: int, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Examples whose positions cancel but for a hundredth: their norm is far below the norms of its terms."""
    draw = torch.Generator().manual_seed(1)
    sign = torch.ones(positions)
    sign[::2] = -1
    x = torch.randn(rows, 1, 256, generator=draw) * (sign[:, None] + 0.01)
    return x, torch.full((rows,), float(positions)), torch.full((rows,), 10.0)


def moved(batch: tuple[Tensor, Tensor, Tensor], odd: tuple[Tensor, Tensor, Tensor]) -> float:
    """How far a last example moves the sum over others, in units of the sensitivity."""
    model = Positions()
    sums = []
    for chunk in (batch, odd):
        found = Clipper(model, squared).clipped_sum([chunk], Support.all(model), 1e-4)
        sums.append(found.values["matrix.weight"].double())
    return float((sums[0] - sums[1]).norm()) / found.sensitivity


def test_one_that_overflows_does_not_change_how_others_are_measured() -> None:
    x, length, target = cancelling(52, 60)
    x[-1], x[-1, 0, 0] = 0.0, 1e20
    assert moved((x[:-1], length[:-1], target[:-1]), (x, length, target)) <= 1


@pytest.mark.parametrize("longest", [90, 150, 260])
def test_a_longer_one_does_not_change_how_others_are_measured(longest: int) -> None:
    """Padded to its length, gradients of others may be formed whose norms were found without forming them."""
    x, length, target = cancelling(60, 60)
    padded = torch.cat([x, torch.zeros(60, longest - 60, 256)], 1)
    padded[-1] = torch.randn(longest, 256, generator=torch.Generator().manual_seed(2))
    lengths = length.clone()
    lengths[-1] = longest
    assert moved((x[:-1], length[:-1], target[:-1]), (padded, lengths, target)) <= 1


@pytest.mark.parametrize("left", [1e-2, 1e-3])
@pytest.mark.parametrize("positions", [1, 8])
def test_a_longer_one_does_not_change_how_scattered_coordinates_of_others_are_measured(
    positions: int, left: float
) -> None:
    """One position: a product without a sum. Eight: gradients are formed twice. Forty: they are kept."""
    model = Positions()
    support = Support.random(model, ratio=0.3 if positions > 1 else 0.004, seed=4)
    draw = torch.Generator().manual_seed(1)
    if positions == 1:
        # Nearly all of the gradient of an example lies in a column of which the support has next to nothing.
        active = (support["matrix.weight"].mask() * model.head.weight.detach().view(-1, 1) ** 2).sum(0)
        x = torch.zeros(60, 1, 256)
        x[:, 0, int(torch.where(active > 0, active, torch.inf).argmin())] = 1 + left
    else:
        sign = torch.tensor([1.0, -1.0] * (positions // 2))
        x = torch.randn(60, 1, 256, generator=draw) * (sign[:, None] + left)
    length, target = torch.full((60,), float(positions)), torch.full((60,), 10.0)
    padded = torch.cat([x, torch.zeros(60, 40 - positions, 256)], 1)
    padded[-1] = torch.randn(40, 256, generator=draw)
    lengths = length.clone()
    lengths[-1] = 40
    sums = []
    for chunk in ((x[:-1], length[:-1], target[:-1]), (padded, lengths, target)):
        found = Clipper(model, squared).clipped_sum([chunk], support, 1e-4)
        sums.append(found.values["matrix.weight"].double())
    assert float((sums[0] - sums[1]).norm()) <= found.sensitivity


class Sliding(nn.Module):
    """A convolution over the positions that an example has, and their mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.filter = nn.Conv1d(inputs, outputs, 3, padding=1, bias=False)
        self.head = nn.Linear(outputs, 1).requires_grad_(False)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        real = (torch.arange(x.shape[2]) < length[:, None]).unsqueeze(1)
        out: Tensor = self.head((self.filter(x) * real).sum(2) / length[:, None])
        return out.squeeze(1)


@pytest.fixture(params=[True, False], ids=["compiled", "by tensors"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether compiled code may form the gradients of convolutions."""
    if not request.param:
        monkeypatch.setattr(convolution, "available", lambda *given: False)
    elif not available(torch.float32, torch.device("cpu"), 2, 1):
        pytest.skip("there is no compiled code")
    return bool(request.param)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("left", [1e-2, 1e-3])
@pytest.mark.parametrize("ratio", [None, 0.5])
@pytest.mark.parametrize(("channels", "positions", "longest"), [((64, 64), 16, 400), ((8, 256), 16, 400)])
def test_a_longer_one_does_not_change_how_convolutions_of_others_are_measured(
    channels: tuple[int, int], positions: int, longest: int, ratio: float | None, left: float
) -> None:
    """Their gradients are kept, formed twice, or not formed, by the length of the longest."""
    model = Sliding(*channels)
    support = Support.all(model) if ratio is None else Support.random(model, ratio=ratio, seed=4)
    draw = torch.Generator().manual_seed(1)
    # Nothing at both ends, so that every place of the window sees all that cancels.
    sign = torch.tensor([0.0, *[1.0 + left, -1.0] * (positions // 2 - 1), 0.0])
    x = torch.randn(40, channels[0], 1, generator=draw) * sign
    length, target = torch.full((40,), float(positions)), torch.full((40,), 10.0)
    padded = torch.cat([x, torch.zeros(40, channels[0], longest - positions)], 2)
    padded[-1] = torch.randn(channels[0], longest, generator=draw)
    lengths = length.clone()
    lengths[-1] = longest
    sums = []
    for chunk in ((x[:-1], length[:-1], target[:-1]), (padded, lengths, target)):
        found = Clipper(model, squared).clipped_sum([chunk], support, 1e-4)
        sums.append(found.values["filter.weight"].double())
    assert float((sums[0] - sums[1]).norm()) <= found.sensitivity


def test_a_convolution_that_is_formed_twice_has_the_weight_that_it_would_have_if_it_were_kept(
    compiled: bool,
) -> None:
    """What forming may round is not what decides: where it could, it is formed in double precision.

    Compiled code forms the same gradient twice, so it rounds nothing that was not measured.
    """
    draw = torch.Generator().manual_seed(5)
    sign = torch.tensor([0.0, *[1.004, -1.0] * 69, 0.0])
    a = torch.randn(2, 256, 1, generator=draw) * sign
    b = torch.randn(2, 256, 1, generator=draw).expand(2, 256, 140).contiguous()
    use = Convolution(a, b, Geometry((1,), (1,), (1,), 1), (3,), 2)
    norms = use.norms(Support.random(nn.Conv1d(256, 256, 3, bias=False), ratio=0.99, seed=0)["weight"])
    assert use.keeps is compiled
    assert (norms.above <= (1 + 2.0**-9) * norms.square).all()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_what_is_infinite_where_nothing_is_active_counts_for_nothing(side: str) -> None:
    """A mass that is infinite times nothing must not reach the sum as not-a-number."""
    draw = torch.Generator().manual_seed(6)
    a, b = torch.randn(3, 4, 9, generator=draw), torch.randn(3, 4, 9, generator=draw)
    (a if side == "inputs" else b)[0, 3] = math.inf
    mask = torch.zeros(4, 4, 3, dtype=torch.bool)
    mask[:3, :3] = torch.rand(3, 3, 3, generator=draw) < 0.6
    block = Block.coordinates(mask.shape, mask.flatten().nonzero().flatten())
    use = Convolution(a, b, Geometry((1,), (1,), (1,), 1), (3,), 3)
    norms = use.norms(block)
    plain = Convolution(a[1:], b[1:], Geometry((1,), (1,), (1,), 1), (3,), 2).norms(block)
    assert norms.square.isfinite().all()
    assert norms.mass.isfinite().all()
    assert torch.equal(norms.square[1:], plain.square)
    assert torch.equal(norms.mass[1:], plain.mass)


@pytest.mark.parametrize("clipping", ["flat", "automatic", "per-layer"])
def test_a_mass_that_overflows_leaves_its_example_out(clipping: Clipping) -> None:
    """Inputs of 1e160 and output gradients of 1e-160 have a gradient near one, and squares beyond all numbers."""
    model = nn.Sequential(nn.Conv1d(2, 2, 3, bias=False), nn.Flatten(), nn.Linear(8, 1)).double()
    model[2].requires_grad_(False)
    x = torch.randn(4, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    x[0] *= 1e160
    scale = torch.tensor([1e-160, 1.0, 1.0, 1.0], dtype=torch.float64)
    clipper = Clipper(model, lambda model, batch: batch[1] * model(batch[0]).squeeze(1), clipping=clipping)
    support = Support.random(model, ratio=0.8, seed=0)
    whole, rest = (
        clipper.clipped_sum([chunk], support, 1.0).values["0.weight"]
        for chunk in ((x, scale), (x[1:], scale[1:]))
    )
    assert whole.isfinite().all()
    assert float((whole - rest).norm()) <= 1 + 2.0**-8


def test_an_example_has_one_gradient_whatever_others_look_like() -> None:
    """Equal output gradients at all positions of all examples are a case of its own."""
    draw = torch.Generator().manual_seed(3)
    b = torch.randn(1, 1, 16, generator=draw).expand(2, 1000, 16).contiguous()
    ids = torch.zeros(2, 1000, dtype=torch.int64)
    other = b.clone()
    other[1, 0] = 0
    alike, unlike = (Embedding(ids, part, 5, None).per_example(0, 1).double() for part in (b, other))
    # Within rounding of the result, not of a thousand additions.
    assert float((alike - unlike).norm()) <= 2.0**-23 * float(alike.norm())
