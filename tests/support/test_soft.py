"""Soft supports: their weights, their files, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.errors import ArgumentError
from tacit.support import Block, Support
from tacit.support.soft import FASTEST, effective_share, soft_blocks


def test_columns_that_moved_weigh_more_and_the_others_keep_their_weight() -> None:
    """Too few columns to show that the others are useless. Only differences count: training is not made shorter."""
    generator = torch.Generator().manual_seed(1)
    total = torch.randn(1, 400, generator=generator)
    total[:, :5] += 6
    block = soft_blocks({"weight": total}, 1.0, 3.0)["weight"]
    assert block.weights is not None
    assert block.weights.axis == 1
    values = block.weights.values.double()
    assert 1.3 < float(values[:5].min()) <= float(values.max()) < FASTEST
    assert 0.95 < float(values[5:].median()) < 1
    assert float(values.min()) == float(values[5:].median()), "the floor"
    assert float(values.square().mean()) == pytest.approx(1), "as much noise as without weights"
    assert 0.9 < effective_share(block) < 1


def test_columns_of_noise_weigh_less_where_silencing_them_is_shown_to_help() -> None:
    generator = torch.Generator().manual_seed(1)
    total = torch.randn(1, 2000, generator=generator)
    total[:, :20] += 15
    block = soft_blocks({"weight": total}, 1.0, 3.0)["weight"]
    assert block.weights is not None
    values = block.weights.values.double()
    assert float(values[:20].min()) > 0.95 * FASTEST
    assert float(values.max()) == pytest.approx(FASTEST), "no column moves faster"
    assert float(values[20:].median()) < FASTEST / 3
    assert float(values.square().mean()) < 1, "less noise than without weights"
    assert block.size == 2000


def test_columns_that_only_together_carry_a_signal_keep_their_weight() -> None:
    """Beside a few strong columns a thousand weak ones, none of which could be told from noise by itself."""
    generator = torch.Generator().manual_seed(1)
    total = torch.randn(1, 1005, generator=generator)
    total[:, 5:] += 1
    total[:, :5] += 60
    assert effective_share(soft_blocks({"weight": total}, 1.0, 3.3)["weight"]) == 1


def test_few_columns_all_keep_their_weight() -> None:
    total = torch.randn(1, 12, generator=torch.Generator().manual_seed(2))
    total[:, :2] += 30
    assert effective_share(soft_blocks({"weight": total}, 1.0, 3.3)["weight"]) == 1


def test_signal_along_a_common_direction_is_found_where_energies_do_not_show_it() -> None:
    """As in the first layer of an MLP on a wide table: every column moves all 64 units along one vector."""
    generator = torch.Generator().manual_seed(5)
    total = torch.randn(64, 1000, generator=generator)
    useful = torch.arange(1000) < 50
    total += 5 * torch.nn.functional.normalize(torch.randn(64, 1, generator=generator), dim=0) * useful
    energies = total.square().sum(0)
    among_highest = float(useful[energies.topk(50).indices].double().mean())
    block = soft_blocks({"weight": total}, 1.0, 3.0)["weight"]
    assert among_highest < 0.75
    assert block.weights is not None
    weights = block.weights.values.double()
    assert float(weights[useful].mean()) > 0.9 * float(weights.max())
    assert float(weights[~useful].mean()) < 0.5 * float(weights.max())


def test_without_differences_the_weights_hardly_differ() -> None:
    total = torch.randn(32, 60, generator=torch.Generator().manual_seed(2))
    assert effective_share(soft_blocks({"weight": total * 3}, 1.0, 3.0)["weight"]) > 0.95


def test_vectors_stay_as_they_are() -> None:
    assert soft_blocks({"norm.weight": torch.ones(4)}, 1.0, 3.0)["norm.weight"].weights is None


def test_without_noise_nothing_is_weighted() -> None:
    assert soft_blocks({"weight": torch.ones(2, 3)}, 0.0, 1.0)["weight"].weights is None


def test_a_weighted_support_survives_its_file_and_differs_from_the_plain_one(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    weights = torch.tensor([0.5, 1.0, 0.25])
    support = Support({"weight": Block.weighted((2, 3), weights, 1), "bias": Block.all((2,))})
    support.save(tmp_path / "support.safetensors")
    read = Support.load(tmp_path / "support.safetensors")
    assert read == support != Support.all(model)
    assert read["weight"].weights is not None
    assert read["weight"].weights.values.tolist() == weights.tolist()
    other = Support({"weight": Block.weighted((2, 3), weights.flip(0), 1), "bias": Block.all((2,))})
    assert other != support
    assert (support.size, support.ratio) == (8, 1.0)


@pytest.mark.parametrize(
    ("values", "axis", "message"),
    [
        (torch.ones(2), 1, "2 weights along dimension 1"),
        (torch.ones(3), 2, "along dimension 2"),
        (torch.tensor([0.5, float("inf"), 0.5]), 1, "positive and finite"),
        (torch.tensor([0.5, 0.0, 0.5]), 1, "positive and finite"),
        (torch.tensor([0.5, float("nan"), 0.5]), 1, "positive and finite"),
    ],
)
def test_bad_weights_are_refused(values: torch.Tensor, axis: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Block.weighted((2, 3), values, axis)


def test_what_is_active_in_full_in_one_support_is_so_in_the_union() -> None:
    soft = Support({"weight": Block.weighted((2, 3), torch.full((3,), 0.5), 1), "bias": Block.all((2,))})
    head = Support({"weight": Block.all((2, 3)), "bias": Block.silent((2,))})
    bias = Support({"weight": Block.silent((2, 3)), "bias": Block.all((2,))})
    assert (soft | head)["weight"].weights is None
    assert (soft | bias) == soft
    assert (bias | soft) == soft


def test_a_support_without_its_weights_has_the_same_coordinates() -> None:
    soft = Support({"weight": Block.weighted((2, 3), torch.full((3,), 0.5), 1), "bias": Block.silent((2,))})
    plain = soft.unweighted()
    assert plain == Support({"weight": Block.all((2, 3)), "bias": Block.silent((2,))})
    assert plain.unweighted() is plain
