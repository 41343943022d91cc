"""The largest of many scores: the same as by sorting, in little memory."""

from __future__ import annotations

import pytest
import torch

from tacit import ArgumentError
from tacit.support import largest as module
from tacit.support.largest import largest


def by_sorting(scores: dict[str, torch.Tensor], size: int) -> list[int]:
    flat = torch.cat([score.flatten() for score in scores.values()])
    return sorted(torch.sort(flat, descending=True, stable=True).indices[:size].tolist())


def found(scores: dict[str, torch.Tensor], size: int) -> list[int]:
    places, start = [], 0
    for name, positions in largest(scores, size).items():
        assert positions.tolist() == sorted(positions.tolist())
        places += (positions + start).tolist()
        start += scores[name].numel()
    return places


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("ties", [False, True])
def test_they_are_those_of_a_stable_sort(
    dtype: torch.dtype, ties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE", 16)
    generator = torch.Generator().manual_seed(3)
    drawn = [3 * torch.randn(shape, generator=generator) for shape in ((7, 9), (40,), (0,), (1,))]
    scores = {f"p{i}": (d.round() if ties else 1000 * d).to(dtype) for i, d in enumerate(drawn)}
    for size in (1, 2, 17, 50, 103, 104):
        assert found(scores, size) == by_sorting(scores, size)


def test_zeros_of_either_sign_are_equal_and_infinities_have_their_place() -> None:
    inf = float("inf")
    scores = {"a": torch.tensor([-0.0, 0.0, -inf, 1e-45, -1e-45, inf, -0.0, 3e38])}
    assert [found(scores, size) for size in (1, 3, 4, 6, 7)] == [
        [5],
        [3, 5, 7],
        [0, 3, 5, 7],
        [0, 1, 3, 5, 6, 7],
        [0, 1, 3, 4, 5, 6, 7],
    ]


def test_scores_of_two_precisions_are_ranked_together() -> None:
    scores = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([2.0, 1.0 + 1e-12], dtype=torch.float64)}
    assert found(scores, 3) == [1, 2, 3]


def test_a_tensor_that_is_not_contiguous_keeps_its_order() -> None:
    score = torch.arange(12.0).view(3, 4).t()
    assert largest({"a": score}, 2)["a"].tolist() == [8, 11]


def test_a_missing_score_is_refused_wherever_it_is() -> None:
    score = torch.ones(10)
    score[7] = float("nan")
    for size in (0, 1, 10):
        with pytest.raises(ArgumentError, match="'b' hold NaN"):
            largest({"a": torch.ones(3), "b": score}, size)


def test_pieces_are_all_that_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would hold the values again, and a place of eight bytes for each."""
    monkeypatch.setattr(module, "_PIECE", 1000)
    sizes: list[int] = []
    plain = torch.bincount

    def counted(keys: torch.Tensor, **options: int) -> torch.Tensor:
        sizes.append(keys.numel())
        return plain(keys, **options)

    monkeypatch.setattr(torch, "bincount", counted)
    monkeypatch.setattr(torch.Tensor, "kthvalue", None)
    monkeypatch.setattr(torch.Tensor, "sort", None)
    assert len(largest({"a": torch.rand(10_500)}, 77)["a"]) == 77
    assert max(sizes) <= 1000
