"""Checks that are put off to the end of a batch: the same sums as where each of them answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import Support
from tacit.losses import cross_entropy
from tacit.raw import clipping, exact
from tacit.raw.clipping import Clipper
from tacit.raw.doubts import anywhere, confirmed, put_off
from tacit.raw.exact import Allowance
from tacit.raw.gradients import embedding, linear
from tacit.raw.gradients.embedding import Embedding
from tacit.raw.units import UnitBatch

WIDE = 80  # so wide that sums are verified


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, WIDE),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(WIDE, WIDE),
        nn.Tanh(),
        nn.Linear(WIDE, 3),
    ).train()


def chunks(hostile: float | None = None) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(5)
    x, y = torch.randn(12, 6, generator=draw), torch.randint(3, (12,), generator=draw)
    if hostile is not None:
        x[7] = hostile
    parts = ((0, 4), (4, 9), (9, 12))
    return [(x[i:j].clone(), y[i:j]) for i, j in parts]  # a copy: products depend on where rows begin


def summed(model: nn.Module, given: Any, clip_norm: float = 0.5, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(11)
    clipper = Clipper(model, cross_entropy, seed=3)
    found = clipper.clipped_sum(given, Support.all(model), clip_norm, **options)
    assert clipper._summed <= 12  # no example counts twice in the bound on rounding
    return found.values


@pytest.fixture
def hoping(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Puts checks off on the CPU too; counts the careful batches that follow."""
    redone: list[int] = []

    def is_hopeful(clipper: Clipper, statistic: str) -> bool:
        return True

    settle = Clipper._settle

    def counting(clipper: Clipper, *given: Any, **options: Any) -> None:
        settle(clipper, *given, **options)
        redone.append(clipper._careful)

    monkeypatch.setattr(Clipper, "_is_hopeful", is_hopeful)
    monkeypatch.setattr(Clipper, "_settle", counting)
    return redone


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("hostile", [None, float("inf"), float("nan"), 1e38])
def test_sums_are_those_of_checks_that_answer_at_once(
    dropout: float, hostile: float | None, request: pytest.FixtureRequest
) -> None:
    expected = summed(network(dropout), chunks(hostile))
    redone = request.getfixturevalue("hoping")
    found = summed(network(dropout), chunks(hostile))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert redone == [clipping.CAREFUL_AFTERWARDS if hostile is not None and hostile != 1e38 else 0]


def test_a_sum_that_is_too_far_off_is_formed_again(
    hoping: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hoping == []
    monkeypatch.setattr(linear, "PROBED_BEYOND", 0)
    monkeypatch.setitem(exact.CONFIDENCE, 1, 1e6)  # no error in one go is small enough
    found = summed(network(), chunks())
    assert hoping == [clipping.CAREFUL_AFTERWARDS]
    monkeypatch.setattr(Clipper, "_is_hopeful", lambda *_: False)
    expected = summed(network(), chunks())
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_is_held_is_a_copy_and_is_bounded(hoping: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fills one buffer again and again still has every chunk counted once."""
    whole = chunks(float("nan"))
    buffer = torch.empty(5, 6)

    def refilled() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in whole:
            buffer[: len(x)] = x
            yield buffer[: len(x)], y

    found = summed(network(), refilled())
    monkeypatch.setattr(clipping, "HELD", 1)
    apart = summed(network(), refilled())
    assert len(hoping) == 4  # one for all chunks, then one for each
    monkeypatch.setattr(Clipper, "_is_hopeful", lambda *_: False)
    expected = summed(network(), whole)
    for name in expected:
        assert torch.equal(found[name], expected[name])
        assert torch.allclose(apart[name].double(), expected[name].double(), atol=1e-12)


def test_units_are_put_off_too(hoping: list[int]) -> None:
    x, y = (torch.cat(parts) for parts in zip(*chunks(float("inf")), strict=True))
    ids = [i // 2 for i in range(12)]
    found = summed(network(), [UnitBatch((x, y), ids)])
    assert hoping == [clipping.CAREFUL_AFTERWARDS]
    kept = [i for i in range(12) if i // 2 != 3]
    expected = summed(network(), [UnitBatch((x[kept], y[kept]), [ids[i] for i in kept])])
    assert all(torch.allclose(found[name].double(), expected[name].double(), atol=1e-6) for name in expected)


def test_after_a_doubt_checks_answer_at_once_for_a_while() -> None:
    clipper = Clipper(network(), cross_entropy)
    assert not clipper._is_hopeful("gradient")  # on the CPU there is nothing to wait for
    clipper._device, clipper._careful = torch.device("meta"), clipping.CAREFUL_AFTERWARDS
    answers = [clipper._is_hopeful("gradient") for _ in range(clipping.CAREFUL_AFTERWARDS + 2)]
    assert answers == [False] * (clipping.CAREFUL_AFTERWARDS - 1) + [True] * 3
    assert not clipper._is_hopeful("row-votes")


def test_errors_that_are_put_off_count_together() -> None:
    allowance, doubts = Allowance(1.0, 0), []
    each = torch.full((3, exact.PROBES), 0.6 / exact.CONFIDENCE[1] / 3**0.5)
    with put_off(doubts):
        assert allowance.covers("a", each)
        allowance.note(doubts)
        assert not confirmed(doubts)
        allowance.settle(kept=True)
        assert allowance.covers("b", each)  # 0.6² + 0.6² < 1
        allowance.note(doubts)
        assert not confirmed(doubts)
        assert allowance.covers("b", each)  # 0.6² + 1.2² > 1
        allowance.note(doubts)
        assert confirmed(doubts)
    allowance.settle(kept=False)
    assert allowance.covers("b", each)
    assert not allowance.covers("b", each)
    assert not confirmed([])
    assert anywhere(torch.tensor([False, True]))


IDS = torch.tensor([[3, 1, 3, 0], [0, 0, 0, 0], [2, 5, 1, 5]])


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("kind", ["all", "rows", "coordinates"])
def test_lookups_without_a_question_to_the_device_give_the_same(
    padding: int | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    b, weights = torch.randn(3, 4, 5), torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    table = nn.Embedding(6, 5)
    support = {
        "all": Support.all,
        "rows": lambda m: Support.of_rows(m, {"weight": torch.tensor([1, 3, 5])}),
        "coordinates": lambda m: Support.of_coordinates(m, {"weight": torch.tensor([0, 7, 16, 17, 29])}),
    }[kind](table)
    block = support["weight"]

    def everything() -> list[Tensor]:
        def made() -> Embedding:
            once = Embedding(IDS, b, 6, padding)
            return Embedding.joined([once, Embedding(IDS.flip(0), 2 * b, 6, padding)])

        grouped = made().regrouped(torch.tensor([1, 0, 1]), 2)
        use = made()
        found = [use.per_example(0, 3), use.rows_per_example(), use.weighted_counts(weights)]
        found += [use.forming_error(), use.masked_error(block), grouped.per_example(0, 2)]
        found += [grouped.rows_per_example(), use.norms(block).square, use.weighted_sum(weights, block)]
        found += [use.weighted_absolute_sum(weights, block), use.weighted_row_norms(weights, block)]
        if kind == "all":
            sums = (use.weighted_rows(weights), use.counts(weights))
            found += [x for rows in sums for tile in rows.tiles() for x in tile]
        return found

    expected = everything()
    monkeypatch.setattr(embedding, "_waits_for", lambda device: True)
    for one, other in zip(everything(), expected, strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-6)
