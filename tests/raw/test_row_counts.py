"""Counts of the rows that examples look up: what each example gives is bounded, whatever it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ArgumentError, ModelError
from tacit.raw.clipping import ClippedSum, Clipper
from tacit.raw.units import UnitBatch
from tacit.support import Support

WORDS, PLACES, WIDTH = 50, 7, 3


class TwoTables(nn.Module):
    """Words, of which one is padding, and a place for each text."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.EmbeddingBag(WORDS, WIDTH, mode="mean", padding_idx=0)
        self.places = nn.Embedding(PLACES, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids[:, 1:]) + self.places(ids[:, 0]))


class Tied(nn.Module):
    """A table that is looked up and is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_an_id_that_the_table_does_not_have_is_a_sentence() -> None:
    """In lookups of every kind, and without the id, which belongs to an example."""
    for row in ([0, WORDS, 1], [PLACES, 3, 1], [0, -1, 1]):
        with pytest.raises(ModelError, match="does not have") as refused:
            counts(TwoTables(), [texts([row])], 1.0)
        assert str(WORDS) not in str(refused.value)


def texts(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64)


def counts(model: nn.Module, chunks: list[Any], clip_norm: float) -> ClippedSum:
    clipper = Clipper(model, loss)
    return clipper.clipped_sum(chunks, Support.all(model), clip_norm, statistic="row-counts")


TEXTS = [[1, 5, 5, 5, 5], [2, 6, 7, 8, 9], [1, 0, 0, 0, 0], [6, 49, 5, 0, 5]]


@pytest.mark.parametrize("clip_norm", [0.5, 1.0, 1.5, 100.0])
def test_every_row_is_counted_once_for_each_example_and_all_rows_of_one_are_clipped_together(
    clip_norm: float,
) -> None:
    places, words = torch.zeros(PLACES).double(), torch.zeros(WORDS).double()
    for place, *text in TEXTS:
        different = set(text) - {0}
        share = min(1.0, clip_norm / math.sqrt(len(different) + 1))
        places[place] += share
        for word in different:
            words[word] += share
    found = counts(TwoTables(), [texts(TEXTS[:3]), texts(TEXTS[3:])], clip_norm)
    assert set(found.values) == {"words.weight", "places.weight"}
    assert torch.allclose(found.values["words.weight"].double(), words)
    assert torch.allclose(found.values["places.weight"].double(), places)
    assert found.size == WORDS + PLACES


@pytest.mark.parametrize(
    "text", [[3, 9, 9, 9, 9], [3, 1, 2, 3, 4], [3, 0, 0, 0, 0]], ids=["one word", "all different", "empty"]
)
def test_no_example_moves_the_counts_by_more_than_the_clip_norm(text: list[int]) -> None:
    model = TwoTables()
    without = counts(model, [texts(TEXTS)], 1.0)
    found = counts(model, [texts([*TEXTS, text])], 1.0)
    moved = math.sqrt(
        sum(
            float((found.values[n].double() - without.values[n].double()).square().sum())
            for n in found.values
        )
    )
    assert 0.999 < moved <= found.sensitivity


def test_an_example_with_every_word_there_is_moves_the_counts_by_no_more() -> None:
    model = nn.Sequential(nn.EmbeddingBag(200_000, 2, mode="mean"), nn.Linear(2, 2))
    found = counts(model, [(torch.arange(200_000)[None], torch.tensor([1]))], 1.0)
    (values,) = found.values.values()
    assert 0.999 < float(values.double().square().sum().sqrt()) <= found.sensitivity


def test_a_unit_counts_once_however_many_examples_it_has() -> None:
    ids, targets = texts(TEXTS)
    found = counts(TwoTables(), [UnitBatch((ids, targets), [0, 0, 0, 1])], 1.0)
    first = 1 / math.sqrt(5 + 2)  # words 5 to 9, places 1 and 2
    second = 1 / math.sqrt(2 + 1)
    assert torch.allclose(found.values["words.weight"][5].double(), torch.tensor(first + second).double())
    assert torch.allclose(found.values["places.weight"][1].double(), torch.tensor(first).double())


def test_of_a_tied_table_lookups_count_and_outputs_do_not() -> None:
    found = counts(Tied(), [texts([[4, 4], [4, 8]])], 10.0)
    (values,) = found.values.values()
    assert values.nonzero().flatten().tolist() == [4, 8]
    assert values[4] == 2


def test_counts_of_no_example_are_zeros_for_the_tables_alone() -> None:
    found = counts(TwoTables(), [], 1.0)
    assert {name: tuple(v.shape) for name, v in found.values.items()} == {
        "words.weight": (WORDS,),
        "places.weight": (PLACES,),
    }


def test_counts_on_part_of_a_table_or_of_examples_alone_are_refused() -> None:
    model = TwoTables()
    with pytest.raises(ArgumentError, match="whole parameters"):
        Clipper(model, loss).clipped_sum(
            [texts(TEXTS)], Support.random(model, ratio=0.5, seed=1), 1.0, statistic="row-counts"
        )
    with pytest.raises(ArgumentError, match="isolation"):
        Clipper(model, loss, isolation="construction").clipped_sum(
            [texts(TEXTS)], Support.all(model), 1.0, statistic="row-counts"
        )
