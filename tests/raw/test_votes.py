"""Votes for rows: whatever an example's gradients are, its votes have one norm, and they are its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ArgumentError
from tacit.raw.clipping import ClippedSum, Clipper
from tacit.raw.units import UnitBatch
from tacit.support import Support

Batch = tuple[Tensor, Tensor]


class Network(nn.Module):
    """Every kind of gradient: looked up, over positions, linear, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(30, 6)
        self.mix = nn.Conv1d(6, 7, 2)
        self.hidden = nn.Linear(7, 9)
        self.head = nn.Linear(9, 3, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        mixed = self.mix(self.words(ids).transpose(1, 2)).tanh().mean(2)
        return self.head(self.hidden(mixed).tanh())


class Fixed(Network):
    """The same without votes for words, which are not trained: its gradients come from plain autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.words.requires_grad_(False)


NETWORKS = pytest.mark.parametrize("network", [Network, Fixed])


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def texts(count: int = 9, seed: int = 1) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(30, (count, 5), generator=draw), torch.randint(3, (count,), generator=draw)


def votes(
    model: nn.Module,
    chunks: Sequence[Any],
    count: int,
    clip_norm: float = 2.0,
    loss: Any = loss,
    **options: Any,
) -> ClippedSum:
    clipper = Clipper(model, loss, **options)
    return clipper.clipped_sum(chunks, Support.all(model), clip_norm, statistic="row-votes", votes=count)


def whole(found: ClippedSum) -> Tensor:
    return torch.cat([value.double() for value in found.values.values()])


def oracle(model: nn.Module, batch: Batch, count: int, clip_norm: float) -> dict[str, Tensor]:
    """By plain autograd, one example at a time."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    most = sum(min(count, len(p)) for p in named.values())
    total = {name: torch.zeros(len(p), dtype=torch.float64) for name, p in named.items()}
    for row in range(len(batch[1])):
        own = torch.autograd.grad(
            loss(model, (batch[0][row : row + 1], batch[1][row : row + 1])).sum(), list(named.values())
        )
        for name, gradient in zip(named, own, strict=True):
            norms = gradient.reshape(len(gradient), -1).double().norm(dim=1)
            best = norms.sort(descending=True, stable=True).indices[:count]
            total[name][best[norms[best] > 0]] += clip_norm / math.sqrt(most)
    return total


@NETWORKS
@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_votes_are_those_of_plain_autograd(network: type[Network], count: int, isolation: Any) -> None:
    model, batch = network().double(), texts()
    found = votes(
        model, [(batch[0][:4], batch[1][:4]), (batch[0][4:], batch[1][4:])], count, isolation=isolation
    )
    expected = oracle(model, batch, count, 2.0)
    for name, total in expected.items():
        assert torch.allclose(found.values[name].double(), total), name


@NETWORKS
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-20, 1.0, 1e20, 1e38, math.inf, math.nan])
def test_one_example_moves_the_sum_by_the_clip_norm_at_most_whatever_its_gradients_are(
    network: type[Network], scale: float
) -> None:
    model = network()

    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, batch) * torch.where(batch[0][:, 0] == 29, scale, 1.0)

    ids, targets = texts()
    ids[:, 0] = ids[:, 0].clamp(max=28)
    odd = torch.tensor([[29, 1, 2, 3, 4]])
    without = votes(model, [(ids, targets)], 3, loss=scaled)
    within = votes(model, [(torch.cat([ids, odd]), torch.cat([targets, targets[:1]]))], 3, loss=scaled)
    moved = whole(within) - whole(without)
    assert float(moved.norm()) <= within.sensitivity
    assert within.sensitivity == pytest.approx(2.0, rel=0.01)
    # n votes of C/√n each, no more and no other: 3 in each of words, mix, its bias, hidden, its bias and head.
    vote = 2.0 / math.sqrt(18 if network is Network else 15)
    assert set((moved / vote).abs().round(decimals=9).tolist()) <= {0.0, 1.0}
    if 1e-30 < scale < 1e30:
        assert float(moved.norm()) == pytest.approx(2.0)


def test_the_clip_norm_scales_votes_and_changes_none() -> None:
    model = Network()
    small, large = votes(model, [texts()], 2, 1e-3), votes(model, [texts()], 2, 1e3)
    assert torch.allclose(whole(small) * 1e6, whole(large))


@NETWORKS
def test_every_example_is_worked_on_alone(network: type[Network]) -> None:
    """Beside others its rounding may differ, and between rows that are nearly equal rounding decides."""
    sizes: list[int] = []
    model = network()
    clipper = Clipper(model, loss)
    support = Support.all(model)
    clipper.clipped_sum([texts()], support, 1.0)  # looks at the model
    losses = clipper._losses
    clipper._losses = lambda chunk: (sizes.append(len(chunk[1])), losses(chunk))[1]  # type: ignore
    clipper.clipped_sum([texts()], support, 1.0, statistic="row-votes", votes=2)
    assert sizes == [1] * 9
    sizes.clear()
    clipper.clipped_sum([texts()], support, 1.0)
    assert sizes == [9]


def test_votes_leave_nothing_on_the_model_and_count_views_once() -> None:
    model = Fixed()
    batch = texts(8)
    before = [(parameter.requires_grad, parameter.clone()) for parameter in model.parameters()]
    found = votes(model, [batch], 2, views=2)
    for parameter, (flag, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is None
        assert parameter.requires_grad is flag
        assert torch.equal(parameter, value)
    vote = 2.0 / math.sqrt(10)
    for value in found.values.values():
        assert float(value.sum() / vote) == pytest.approx(8.0)  # four examples, two votes in each parameter


def test_rows_that_are_nearly_equal_are_decided_by_the_example_alone() -> None:
    """Equal up to rounding: the votes for one text beside eight others are those that it has by itself."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(333, 64, bias=False), nn.Flatten())
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].expand(64, -1))

    def squares(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().sum(1)

    draw = torch.randn(40, 333)
    together = whole(votes(model, [draw], 5, loss=squares))
    alone = sum(whole(votes(model, [draw[row : row + 1]], 5, loss=squares)) for row in range(40))
    assert torch.equal(together, alone)


@NETWORKS
def test_a_unit_votes_once(network: type[Network]) -> None:
    model = network().double()
    ids, targets = texts()
    units = UnitBatch((ids, targets), [row // 3 for row in range(9)])
    found = votes(model, [units], 2)
    vote = 2.0 / math.sqrt(12 if network is Network else 10)
    for value in found.values.values():
        assert float(value.sum() / vote) == pytest.approx(6.0)  # three units, two votes in each parameter
    for unit in range(3):
        others = UnitBatch(
            (ids[torch.arange(9) // 3 != unit], targets[torch.arange(9) // 3 != unit]),
            [row // 3 for row in range(9) if row // 3 != unit],
        )
        assert float((whole(found) - whole(votes(model, [others], 2))).norm()) <= found.sensitivity


def test_no_chunk_gives_no_votes_and_what_makes_no_sense_is_refused() -> None:
    model = Network()
    assert not whole(votes(model, [], 2)).any()
    clipper = Clipper(model, loss)
    with pytest.raises(ArgumentError, match="belongs to a sum of votes"):
        clipper.clipped_sum([], Support.all(model), 1.0, votes=2)
    with pytest.raises(ArgumentError, match="belongs to a sum of votes"):
        clipper.clipped_sum([], Support.all(model), 1.0, statistic="row-votes")
    with pytest.raises(ArgumentError, match="votes"):
        votes(model, [], 0)
    with pytest.raises(ArgumentError, match="whole parameters"):
        clipper.clipped_sum(
            [],
            Support.of_rows(model, {"head.weight": torch.tensor([1])}),
            1.0,
            statistic="row-votes",
            votes=2,
        )


def module_votes(model: nn.Module, chunks: Sequence[Any], count: int, **options: Any) -> ClippedSum:
    given = options.pop("loss", loss)
    clipper = Clipper(model, given, **options)
    return clipper.clipped_sum(chunks, Support.all(model), 2.0, statistic="module-votes", votes=count)


@NETWORKS
@pytest.mark.parametrize("count", [1, 2, 9])
def test_votes_for_modules_are_those_of_plain_autograd(network: type[Network], count: int) -> None:
    model, batch = network().double(), texts()
    found = module_votes(model, [(batch[0][:4], batch[1][:4]), (batch[0][4:], batch[1][4:])], count).values
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    modules = list(dict.fromkeys(name.partition(".")[0] for name in named))
    expected = dict.fromkeys(modules, 0.0)
    for row in range(9):
        own = torch.autograd.grad(
            loss(model, (batch[0][row : row + 1], batch[1][row : row + 1])).sum(), list(named.values())
        )
        lengths = {
            module: sum(
                float(g.square().sum())
                for name, g in zip(named, own, strict=True)
                if name.startswith(f"{module}.")
            )
            for module in modules
        }
        for module in sorted(modules, key=lambda name: -lengths[name])[:count]:
            expected[module] += 2.0 / math.sqrt(min(count, len(modules)))
    for module in modules:
        first = next(name for name in named if name.startswith(f"{module}."))
        assert float(found[first][0]) == pytest.approx(expected[module])
    total = sum(float(value.sum()) for value in found.values())
    assert total == pytest.approx(sum(expected.values()))  # and nothing anywhere else


@NETWORKS
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1.0, 1e38, math.inf, math.nan])
def test_votes_of_one_example_for_modules_have_the_clip_norm_at_most(
    network: type[Network], scale: float
) -> None:
    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, batch) * torch.where(batch[0][:, 0] == 29, scale, 1.0)

    model = network()
    ids, targets = texts()
    ids[:, 0] = ids[:, 0].clamp(max=28)
    odd = torch.tensor([[29, 1, 2, 3, 4]])
    without = module_votes(model, [(ids, targets)], 2, loss=scaled)
    within = module_votes(model, [(torch.cat([ids, odd]), torch.cat([targets, targets[:1]]))], 2, loss=scaled)
    moved = whole(within) - whole(without)
    assert float(moved.norm()) <= within.sensitivity
    assert set((moved * math.sqrt(2) / 2).abs().round(decimals=9).tolist()) <= {0.0, 1.0}
    if scale == 1.0:
        assert float(moved.norm()) == pytest.approx(2.0)


def test_a_unit_votes_once_for_modules_and_examples_kept_apart_do_not_vote_for_them() -> None:
    model = Fixed().double()
    found = module_votes(model, [UnitBatch(texts(), [row // 3 for row in range(9)])], 1)
    assert float(whole(found).sum()) == pytest.approx(3 * 2.0)
    with pytest.raises(ArgumentError, match="probed"):
        module_votes(model, [texts()], 1, isolation="construction")


def test_modules_with_sparse_gradients_are_voted_for_as_others_are() -> None:
    model, other = Network(), Network()
    other.words.sparse = True
    found, sparse = (module_votes(one, [texts()], 2).values for one in (model, other))
    for name, value in found.items():
        assert torch.equal(value, sparse[name])
