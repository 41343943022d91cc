"""One example more or less moves the clipped sum by at most the stated sensitivity, whatever the example."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oracle import assert_close
from raw.comparison import cross_entropy
from raw.models import batches, networks, supports
from tacit.raw.clipping import ROUNDING, Clipper
from tacit.raw.inspector import Inspections
from tacit.support import Support


def _norm(values: dict[str, Tensor]) -> float:
    return sum(float(v.double().square().sum()) for v in values.values()) ** 0.5


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_removing_any_one_example_moves_the_sum_by_at_most_the_clip_norm(data: st.DataObject) -> None:
    model, shape, vocabulary = data.draw(networks())
    support = data.draw(supports(model))
    rows = data.draw(st.integers(1, 6))
    x, y = data.draw(batches(shape, vocabulary, rows))
    if vocabulary is None:
        x = x * data.draw(st.sampled_from([1e-3, 1.0, 1e4]))
    clip_norm = data.draw(st.sampled_from([0.01, 1.0]))
    gone = data.draw(st.integers(0, rows - 1))
    kept = torch.arange(rows) != gone
    statistic = data.draw(st.sampled_from(["gradient", "absolute", "row-norms"]))
    order = data.draw(st.sampled_from(["mask-then-clip", "clip-then-mask"]))
    clipping = data.draw(st.sampled_from(["flat", "automatic", "per-layer"]))
    if statistic == "row-norms":
        support = Support.matching(model, data.draw(st.lists(st.sampled_from(list(support)), min_size=1)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        warnings.filterwarnings("ignore", "Using padding='same'")
        clipper = Clipper(model, cross_entropy, inspections=Inspections(0), clipping=clipping)
        full, less = (
            clipper.clipped_sum([batch], support, clip_norm, statistic=statistic, clip_order=order)
            for batch in ((x, y), (x[kept], y[kept]))
        )
    moved = _norm({name: full.values[name] - less.values[name] for name in full.values})
    assert moved <= full.sensitivity * (1 + 1e-9)
    assert full.sensitivity == pytest.approx(clip_norm * (1 + ROUNDING[torch.float64]), rel=1e-15)


def test_silent_coordinates_do_not_use_up_the_clip_norm() -> None:
    """Mask, then clip: a large gradient on silent coordinates leaves the active ones as they are."""
    model = nn.Linear(2, 1, bias=False).double()
    support = Support.of_coordinates(model, {"weight": torch.tensor([0])})
    x = torch.tensor([[0.5, 1e6]], dtype=torch.float64)
    clipped = Clipper(model, lambda m, b: m(b[0]).flatten()).clipped_sum([(x,)], support, 1.0)
    assert clipped.values["weight"].tolist() == pytest.approx([0.5], rel=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e300])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_an_example_without_finite_gradient_counts_as_zero(bad: float, place: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    kept = torch.arange(6) != place
    support = Support.random(model, ratio=0.7, seed=0)
    expected = Clipper(model, _product).clipped_sum([(x[kept], y[kept])], support, 0.1)
    x[place] = bad
    clipper = Clipper(model, _product)
    for chunks in ([(x, y)], [(x[:3], y[:3]), (x[3:], y[3:])]):
        found = clipper.clipped_sum(chunks, support, 0.1)
        assert all(value.isfinite().all() for value in found.values.values())
        assert_close(found.values, expected.values, 1e-12)


def _product(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss whose gradient overflows with its input."""
    return cross_entropy(model, batch) + model(batch[0]).sum(1) * batch[0].square().sum(1)


def test_a_batch_of_nothing_finite_gives_zeros() -> None:
    model = nn.Linear(4, 3)
    batch = (torch.full((3, 4), float("nan")), torch.zeros(3, dtype=torch.int64))
    clipped = Clipper(model, cross_entropy).clipped_sum([batch], Support.all(model), 1.0)
    assert not any(value.any() for value in clipped.values.values())


class Centred(nn.Module):
    """Positions that cancel: a gradient far smaller than what it is summed from."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        h = h.flatten(2).transpose(1, 2) if h.dim() == 4 else h
        return h - h.mean(1, keepdim=True)


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_norms_are_never_too_small_where_positions_cancel(kind: str, offset: float) -> None:
    torch.manual_seed(0)
    if kind == "linear":
        model, shape = Centred(nn.Linear(64, 64, bias=False)), (8, 64)
    else:
        model, shape = Centred(nn.Conv2d(64, 64, 1, bias=False)), (64, 2, 4)
    positions = 8
    x = torch.randn(16, *shape) * 0.01
    x = x + offset * torch.randn(16, *((1, 64) if kind == "linear" else (64, 1, 1)))
    weights = torch.randn(16, positions, 64)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) * batch[1]).sum((1, 2))

    support, clipper = Support.all(model), Clipper(model, loss)
    for i in range(16):
        alone = clipper.clipped_sum([(x[i : i + 1], weights[i : i + 1])], support, 1e-3)
        assert _norm(alone.values) <= alone.sensitivity
    if offset == 0:
        # The gradient in double precision: the sum over positions of the centred weights times the inputs.
        centred = weights.double() - weights.double().mean(1, keepdim=True)
        positions_first = x.double() if kind == "linear" else x.double().flatten(2).transpose(1, 2)
        true = torch.bmm(centred.transpose(1, 2), positions_first).flatten(1).norm(dim=1)
        torch.testing.assert_close(clipper.norms((x, weights), support), true, rtol=1e-5, atol=0)


def test_rounding_of_a_large_sum_is_within_the_stated_sensitivity() -> None:
    torch.manual_seed(0)
    model = nn.Linear(200, 1, bias=False)
    x = torch.rand(1, 200) + torch.rand(4096, 200) * 1e-3
    clipper, support = Clipper(model, lambda m, b: m(b[0])[:, 0]), Support.all(model)
    full = clipper.clipped_sum([(x,)], support, 1.0)
    assert full.sensitivity == 1 + ROUNDING[torch.float32]
    for gone in range(0, 4096, 512):
        kept = torch.arange(4096) != gone
        less = clipper.clipped_sum([(x[kept],)], support, 1.0)
        assert (
            _norm({"w": full.values["weight"].double() - less.values["weight"].double()}) <= full.sensitivity
        )


def test_leaving_an_example_out_draws_nothing_anew_for_the_others() -> None:
    """A second pass with other masks would give the others a second chance to be left out as well."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    clipper, support = Clipper(model, cross_entropy), Support.all(model)
    clipper.clipped_sum([(x, y)], support, 0.1)
    torch.manual_seed(1)
    whole = clipper.norms((x, y), support)
    torch.manual_seed(1)
    odd = x.clone()
    odd[3] = float("nan")
    without = clipper.norms((odd, y), support)
    kept = torch.arange(8) != 3
    assert torch.equal(without[kept], whole[kept])
    assert without[3] == 0
