"""Clipped sums over units of several examples: against brute force, and under attack."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oracle import assert_close, clipped_sum, per_example_gradients
from raw.models import batches, cross_entropy, networks, supports
from tacit.errors import ModelError
from tacit.raw.clipping import ROUNDING, Clipper
from tacit.raw.inspector import Inspections
from tacit.raw.one_at_a_time import Singles
from tacit.raw.units import UnitBatch, UnitLayout
from tacit.support import Support

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def of_units(gradients: dict[str, Tensor], ids: list[int]) -> dict[str, Tensor]:
    """The mean over the examples of every unit, in order of first appearance."""
    order = list(dict.fromkeys(ids))
    own = [torch.tensor([place for place, i in enumerate(ids) if i == unit]) for unit in order]
    return {
        name: torch.stack([g[rows].mean(0) for rows in own]) if own else g for name, g in gradients.items()
    }


@given(st.data())
@RELAXED
def test_clipped_sums_and_norms_of_units_equal_brute_force(data: st.DataObject) -> None:
    model, shape, vocabulary = data.draw(networks())
    support = data.draw(supports(model))
    sizes = data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 2, 3, 5, 6, 9, 50]), min_size=1, max_size=5))
    views = data.draw(st.sampled_from([1, 1, 2]))
    ids = data.draw(st.permutations([unit for unit, size in enumerate(sizes) for _ in range(size)]))
    x, y = data.draw(batches(shape, vocabulary, len(ids) * views))
    clip_norm = data.draw(st.sampled_from([0.01, 0.3, 100.0]))
    first = data.draw(st.integers(0, len(sizes)))
    statistic = data.draw(st.sampled_from(["gradient", "absolute", "row-norms"]))
    order = data.draw(st.sampled_from(["mask-then-clip", "clip-then-mask"]))
    if statistic == "row-norms":
        support = Support.matching(model, data.draw(st.lists(st.sampled_from(list(support)), min_size=1)))
    isolation = data.draw(st.sampled_from(["probed", "probed", "construction"]))

    def chunk(chosen: list[int]) -> UnitBatch:
        rows = torch.tensor(chosen, dtype=torch.int64)[:, None] * views + torch.arange(views)
        return UnitBatch((x[rows.flatten()], y[rows.flatten()]), [ids[place] for place in chosen])

    places = range(len(ids))
    chunks = [
        chunk([p for p in places if ids[p] < first]),
        chunk([p for p in places if ids[p] >= first]),
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        warnings.filterwarnings("ignore", "Using padding='same'")
        clipper = Clipper(model, cross_entropy, views=views, isolation=isolation)
        found = clipper.clipped_sum(chunks, support, clip_norm, statistic=statistic, clip_order=order)
        norms = clipper.norms(UnitBatch((x, y), ids), support)
    gradients = of_units(per_example_gradients(model, cross_entropy, (x, y), views), ids)
    expected, _ = clipped_sum(
        gradients, support, clip_norm, statistic=statistic, clip_first=order == "clip-then-mask"
    )
    assert_close(found.values, expected, 1e-10)
    torch.testing.assert_close(norms, clipped_sum(gradients, support, 1.0)[1], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", ["all", "rows", "coordinates", "weighted"])
@pytest.mark.parametrize("layer", ["linear", "positions", "convolution", "depthwise", "embedding", "tied"])
def test_large_layers_are_summed_over_all_examples_at_once_and_are_exact(layer: str, kind: str) -> None:
    """Layers too large to keep gradients of: ghost norms, sampled products, library gradients."""
    torch.manual_seed(1)
    sizes = [1, 1, 2, 3, 3, 7, 12]
    ids = [unit for unit, size in enumerate(sizes) for _ in range(size)]
    model, x = _large(layer, len(ids))
    y = torch.randint(3, (len(ids),))
    support = _support(model, kind)
    gradients = of_units(per_example_gradients(model, cross_entropy, (x, y)), ids)
    norms = clipped_sum(gradients, support, 1.0)[1]
    clip_norm = float(norms.median())
    shuffled = torch.randperm(len(ids))
    chunk = UnitBatch((x[shuffled], y[shuffled]), [ids[i] for i in shuffled])
    clipper = Clipper(model, cross_entropy)
    for statistic in ("gradient", "absolute"):
        expected, _ = clipped_sum(gradients, support, clip_norm, statistic=statistic)
        found = clipper.clipped_sum([chunk], support, clip_norm, statistic=statistic)
        assert_close(found.values, expected, 1e-10)


class _Tied(nn.Module):
    """A table that is looked up and multiplied with: two different uses of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 40)
        self.back = nn.Linear(40, 30, bias=False)
        self.back.weight = self.table.weight
        self.head = nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.back(self.table(x).mean(1))))


def _large(layer: str, rows: int) -> tuple[nn.Module, Tensor]:
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    match layer:
        case "linear":
            model, x = nn.Sequential(nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 3)), torch.randn(rows, 60)
        case "positions":
            model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Flatten(), nn.Linear(150, 3))
            x = torch.randn(rows, 3, 40)
        case "convolution":
            model = nn.Sequential(nn.Conv2d(8, 24, 3), nn.Tanh(), pool, nn.Linear(24, 3))
            x = torch.randn(rows, 8, 5, 5)
        case "depthwise":
            model = nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.Tanh(), pool, nn.Linear(6, 3))
            x = torch.randn(rows, 6, 6, 6)
        case "embedding":
            model = nn.Sequential(nn.Embedding(9, 20), nn.Flatten(), nn.Linear(80, 3))
            x = torch.randint(9, (rows, 4))
        case _:
            model, x = _Tied(), torch.randint(30, (rows, 4))
    return model.double(), x.double() if x.is_floating_point() else x


def _support(model: nn.Module, kind: str) -> Support:
    from raw.comparison import weighted

    match kind:
        case "all":
            return Support.all(model)
        case "rows":
            return Support.random_rows(model, ratio=0.5, seed=2)
        case "coordinates":
            return Support.random(model, ratio=0.1, seed=1)
    return weighted(model, 1, seed=3)


@pytest.mark.filterwarnings("ignore:.*has no rule")
def test_gradients_that_are_formed_on_demand_are_added_up_per_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.raw.fallback.HOLD", 0)
    monkeypatch.setattr("tacit.raw.gradients.units.TILE", 100)
    torch.manual_seed(0)

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(7, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) @ self.scale

    model, ids = Scale().double(), [0, 1, 1, 2, 0, 0, 3, 3, 3, 3, 3, 3]
    x, y = torch.randn(12, 7, dtype=torch.float64), torch.randint(3, (12,))
    gradients = of_units(per_example_gradients(model, cross_entropy, (x, y)), ids)
    for support in (
        Support.all(model),
        Support.random(model, ratio=0.4, seed=1),
        _support(model, "weighted"),
    ):
        expected, norms = clipped_sum(gradients, support, 0.2)
        clipper = Clipper(model, cross_entropy)
        assert_close(clipper.clipped_sum([UnitBatch((x, y), ids)], support, 0.2).values, expected, 1e-10)
        torch.testing.assert_close(clipper.norms(UnitBatch((x, y), ids), support), norms)


def test_one_example_per_unit_is_bit_for_bit_what_it_is_without_units() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    x, y = torch.randn(30, 2, 6, 6), torch.randint(3, (30,))
    ids = np.random.default_rng(0).permutation(30)
    for support in (Support.all(model), Support.random(model, ratio=0.3, seed=1)):
        plain = Clipper(model, cross_entropy, seed=1).clipped_sum([(x, y)], support, 0.1)
        grouped = Clipper(model, cross_entropy, seed=1).clipped_sum([UnitBatch((x, y), ids)], support, 0.1)
        assert all(torch.equal(plain.values[name], grouped.values[name]) for name in plain.values)


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_removing_any_one_unit_moves_the_sum_by_at_most_the_sensitivity(data: st.DataObject) -> None:
    """Examples of a unit that agree, cancel, or are huge: whole units count at most once."""
    model, shape, vocabulary = data.draw(networks())
    if data.draw(st.booleans()):
        model = model.float()
    dtype = next(model.parameters()).dtype
    support = data.draw(supports(model))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    ids = [unit for unit, size in enumerate(sizes) for _ in range(size)]
    x, y = data.draw(batches(shape, vocabulary, len(ids)))
    if vocabulary is None:
        x = (x * data.draw(st.sampled_from([1e-3, 1.0, 1e4]))).to(dtype)
    if data.draw(st.booleans()):  # one example, repeated within its unit: their gradients add up
        first = [ids.index(unit) for unit in ids]
        x, y = x[first], y[first]
    clip_norm = data.draw(st.sampled_from([0.01, 1.0]))
    gone = data.draw(st.integers(0, len(sizes) - 1))
    kept = torch.tensor([unit != gone for unit in ids])
    statistic = data.draw(st.sampled_from(["gradient", "absolute"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        warnings.filterwarnings("ignore", "Using padding='same'")
        clipper = Clipper(model, cross_entropy, inspections=Inspections(0))
        less = UnitBatch((x[kept], y[kept]), [unit for unit in ids if unit != gone])
        full, without = (
            clipper.clipped_sum([batch], support, clip_norm, statistic=statistic)
            for batch in (UnitBatch((x, y), ids), less)
        )
    moved = {name: full.values[name].double() - without.values[name].double() for name in full.values}
    assert sum(float(v.square().sum()) for v in moved.values()) ** 0.5 <= full.sensitivity * (1 + 1e-9)
    assert full.sensitivity == pytest.approx(clip_norm * (1 + ROUNDING[dtype]), rel=1e-15)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("unit", [0, 2])
def test_a_unit_with_one_example_that_is_not_finite_counts_as_zero(bad: float, unit: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    ids = [0, 0, 0, 1, 2, 2]
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    kept = torch.tensor([i != unit for i in ids])
    support = Support.random(model, ratio=0.7, seed=0)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]).sum(1) * batch[0].sum(1)

    less = UnitBatch((x[kept], y[kept]), [i for i in ids if i != unit])
    expected = Clipper(model, loss).clipped_sum([less], support, 0.1)
    x[ids.index(unit)] = bad
    found = Clipper(model, loss).clipped_sum([UnitBatch((x, y), ids)], support, 0.1)
    assert_close(found.values, expected.values, 1e-12)


def test_a_unit_in_two_chunks_of_a_step_is_refused() -> None:
    model = nn.Linear(3, 3)
    x, y = torch.randn(4, 3), torch.randint(3, (4,))
    chunks = [UnitBatch((x[:2], y[:2]), ["a", "b"]), UnitBatch((x[2:], y[2:]), ["b", "c"])]
    with pytest.raises(ModelError, match="Two chunks of one step hold examples of the same unit"):
        Clipper(model, cross_entropy).clipped_sum(chunks, Support.all(model), 1.0)
    alone = Clipper(model, cross_entropy, isolation="construction")
    with pytest.raises(ModelError, match="Two chunks of one step hold examples of the same unit"):
        alone.clipped_sum([Singles(chunks)], Support.all(model), 1.0)


def test_a_batch_with_another_number_of_examples_than_ids_is_refused() -> None:
    model = nn.Linear(3, 3)
    batch = UnitBatch((torch.randn(4, 3), torch.randint(3, (4,))), ["a", "b", "b"])
    with pytest.raises(ModelError, match="another number of examples than ids of units"):
        Clipper(model, cross_entropy).clipped_sum([batch], Support.all(model), 1.0)


def test_a_unit_is_never_parted_by_pieces_that_suit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    ids = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3]
    x, y = torch.randn(13, 4, dtype=torch.float64), torch.randint(3, (13,))
    support = Support.all(model)
    expected = Clipper(model, cross_entropy).clipped_sum([UnitBatch((x, y), ids)], support, 0.1)
    monkeypatch.setattr("tacit.raw.clipping.MOST_EXAMPLES", 4)
    found = Clipper(model, cross_entropy).clipped_sum([UnitBatch((x, y), ids)], support, 0.1)
    assert_close(found.values, expected.values, 1e-12)


def test_the_size_that_a_unit_is_padded_to_depends_on_itself_alone() -> None:
    for company in ([1], [5], [3, 5, 7], [1, 5, 8, 33]):
        sizes = np.sort(np.array([5, *company]))
        layout = UnitLayout(sizes, torch.device("cpu"))
        for padded in (False, True):
            own = [bucket.size for bucket in layout.buckets(padded=padded) for _ in range(bucket.units)]
            assert len(own) == len(sizes)
            assert own[int(np.flatnonzero(sizes == 5)[0])] == (8 if padded else 5)
            assert sum(
                bucket.examples.stop - bucket.examples.start for bucket in layout.buckets(padded=padded)
            ) == (sizes.sum())
