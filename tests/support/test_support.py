"""Supports: building, reading, joining, saving."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from tacit import ArgumentError, FileError, ModelError, Support
from tacit.support import Block, Kind
from tacit.support import support as support_module


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(8, 3))


DIMENSION = 4 * 2 * 9 + 4 + 24 + 3


def test_all_and_matching_count_their_coordinates() -> None:
    everything = Support.all(network())
    assert (everything.size, everything.dimension, everything.ratio) == (DIMENSION, DIMENSION, 1.0)
    biases = Support.matching(network(), ["*.bias"])
    assert biases.counts() == {"0.weight": (0, 72), "0.bias": (4, 4), "2.weight": (0, 24), "2.bias": (3, 3)}
    assert repr(biases) == "Support(7 of 103 coordinates, active ratio 0.06796)"


@pytest.mark.parametrize("size", [1, 7, 50, DIMENSION])
def test_a_random_support_has_its_size_and_follows_its_seed(size: int) -> None:
    support = Support.random(network(), size=size, seed=4)
    assert support.size == size
    assert support == Support.random(network(), size=size, seed=4)
    assert hash(support) == hash(Support.random(network(), size=size, seed=4))
    if 1 < size < DIMENSION:
        assert support != Support.random(network(), size=size, seed=5)


def test_a_random_support_of_very_many_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy refuses to divide a draw among parameters of 10⁹ coordinates; then all are drawn from at once."""
    huge = nn.Linear(40_000, 25_000, device="meta")
    drawn = Support.random(huge, size=5000, seed=1)
    assert drawn.size == 5000
    assert drawn == Support.random(huge, size=5000, seed=1) != Support.random(huge, size=5000, seed=2)
    monkeypatch.setattr(support_module, "_MOST_HYPERGEOMETRIC", 0)
    counts = [
        Support.random(nn.Linear(30, 10), size=62, seed=seed).counts()["bias"][0] for seed in range(300)
    ]
    assert np.mean(counts) == pytest.approx(2.0, abs=0.3)  # 10 of 310 coordinates are those of the bias
    assert Support.random(nn.Linear(30, 10), size=310, seed=0) == Support.all(nn.Linear(30, 10))


def test_top_k_takes_the_highest_and_the_first_among_equals() -> None:
    scores = {"a": torch.tensor([[1.0, 5.0], [5.0, 0.0]]), "b": torch.tensor([5.0, 7.0, 5.0])}
    assert _active(Support.top_k(scores, size=1)) == {"a": [], "b": [1]}
    assert _active(Support.top_k(scores, size=3)) == {"a": [1, 2], "b": [1]}
    assert _active(Support.top_k(scores, size=4)) == {"a": [1, 2], "b": [0, 1]}
    assert _active(Support.top_k(scores, ratio=1.0)) == {"a": [0, 1, 2, 3], "b": [0, 1, 2]}
    assert _active(Support.top_k(scores, ratio=0.5, per_layer=True)) == {"a": [1, 2], "b": [1]}


def test_top_k_ranks_minus_infinity_last_and_refuses_nan() -> None:
    scores = {"a": torch.tensor([-math.inf, -3.0, -math.inf])}
    assert _active(Support.top_k(scores, size=2)) == {"a": [0, 1]}
    with pytest.raises(ArgumentError, match="hold NaN"):
        Support.top_k({"a": torch.tensor([0.0, math.nan])}, size=1)


def test_whole_rows_are_recognised() -> None:
    support = Support.of_coordinates(
        network(), {"2.weight": torch.arange(8, 16), "2.bias": torch.tensor([1])}
    )
    assert support["2.weight"].kind is Kind.ROWS
    assert support == Support.of_rows(network(), {"2.weight": torch.tensor([1]), "2.bias": torch.tensor([1])})
    assert support["2.weight"].compact_shape == (1, 8)


def test_a_union_is_active_where_either_is() -> None:
    one, other = Support.random(network(), ratio=0.2, seed=1), Support.random(network(), ratio=0.2, seed=2)
    both = one | other | Support.matching(network(), ["2.*"])
    for name in both:
        expected = one[name].mask() | other[name].mask() | torch.tensor(name.startswith("2."))
        assert torch.equal(both[name].mask(), expected)
    assert one | one == one


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gather_and_scatter_are_inverse_in_every_memory_layout(layout: torch.memory_format) -> None:
    values = torch.randn(4, 2, 3, 3).to(memory_format=layout)
    blocks = [
        Block.all(values.shape),
        Block.silent(values.shape),
        Block.rows(values.shape, torch.tensor([1, 3])),
        Block.coordinates(values.shape, torch.tensor([0, 5, 17, 71])),
    ]
    for block in blocks:
        target = torch.zeros_like(values)
        block.scatter_(target, block.gather(values))
        assert torch.equal(target, values * block.mask())
        assert block.gather(values).shape == block.compact_shape
        assert torch.equal(block.flat(), block.mask().flatten().nonzero().flatten())


def test_a_support_is_the_same_after_saving(tmp_path: Path) -> None:
    one = Support.random(network(), ratio=0.3, seed=1) | Support.matching(network(), ["2.bias"])
    rows = Support.of_rows(network(), {"0.weight": torch.tensor([0, 2])})
    for support in (one, rows, Support.all(network())):
        support.save(tmp_path / "support.safetensors")
        assert Support.load(tmp_path / "support.safetensors") == support


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "support.safetensors"
    Support.random(network(), ratio=0.3, seed=1).save(path)
    with safe_open(str(path), "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["0.weight"][0] = 0 if tensors["0.weight"][0] else 1
    save_file(tensors, str(path), metadata)
    with pytest.raises(FileError, match="damaged"):
        Support.load(path)
    save_file(tensors, str(path), {**metadata, "format": "other"})
    with pytest.raises(FileError, match="not a support file"):
        Support.load(path)
    save_file(tensors, str(path), {**metadata, "layout": json.dumps({"w": {"shape": [2], "kind": "none"}})})
    with pytest.raises(FileError, match="cannot be read as a support"):
        Support.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(FileError, match="cannot be read as a support"):
        Support.load(path)
    with pytest.raises(FileError, match="cannot be read as a support"):
        Support.load(tmp_path / "nowhere")


def test_the_digest_tells_supports_apart() -> None:
    supports = [
        Support.all(network()),
        Support.matching(network(), ["2.bias"]),
        Support.of_coordinates(network(), {"2.bias": torch.tensor([0])}),
        Support.of_coordinates(network(), {"2.bias": torch.tensor([1])}),
        Support.of_coordinates(network(), {"0.bias": torch.tensor([1])}),
        Support.of_rows(network(), {"2.weight": torch.tensor([1])}),
    ]
    assert len({support.digest() for support in supports}) == len(supports)
    assert Support.all(network()) != "all"


def test_ten_million_coordinates(tmp_path: Path) -> None:
    model = nn.Linear(5000, 2000, bias=False)
    support = Support.top_k({"weight": torch.rand(2000, 5000)}, ratio=0.01)
    both = support | Support.random(model, ratio=0.01, seed=1)
    both.save(tmp_path / "support.safetensors")
    assert Support.load(tmp_path / "support.safetensors") == both
    assert support.size == 100_000
    assert 190_000 < both.size < 200_000


# What is refused ------------------------------------------------------------------------------------------


def test_an_empty_support_is_refused() -> None:
    with pytest.raises(ArgumentError, match="between 1 and d = 103 active coordinates, got k = 0"):
        Support.random(network(), size=0, seed=1)
    with pytest.raises(ArgumentError, match="got k = 0"):
        Support.random(network(), ratio=0.001, seed=1)
    with pytest.raises(ArgumentError, match="k = 0"):
        Support.of_coordinates(network(), {})
    with pytest.raises(ArgumentError, match="got k = 104"):
        Support.random(network(), size=104, seed=1)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="no trainable parameters"):
        Support.all(nn.Flatten())
    frozen = network().requires_grad_(False)
    with pytest.raises(ModelError, match="no trainable parameters"):
        Support.all(frozen)


def test_coordinates_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"outside 0\.\.2"):
        Support.of_coordinates(network(), {"2.bias": torch.tensor([3])})
    with pytest.raises(ArgumentError, match="named twice"):
        Support.of_coordinates(network(), {"2.bias": torch.tensor([1, 1])})
    with pytest.raises(ArgumentError, match=r"'9\.bias' is not a trainable parameter"):
        Support.of_rows(network(), {"9.bias": torch.tensor([0])})
    with pytest.raises(ArgumentError, match="No trainable parameter matches"):
        Support.matching(network(), ["head"])
    with pytest.raises(ArgumentError, match="either ratio= or size="):
        Support.random(network(), seed=1)
    with pytest.raises(ArgumentError, match=r"ratio must lie in \(0, 1\]"):
        Support.random(network(), ratio=1.5, seed=1)
    with pytest.raises(ArgumentError, match="needs ratio="):
        Support.top_k({"a": torch.rand(3)}, size=1, per_layer=True)


def test_another_models_support_is_refused() -> None:
    support = Support.all(network())
    with pytest.raises(ArgumentError, match=r"another model: parameter '0\.weight'"):
        support.check_model(nn.Sequential(nn.Conv2d(2, 5, 3)))
    with pytest.raises(ArgumentError, match="belongs to another model"):
        support | Support.all(nn.Linear(2, 2))


def _active(support: Support) -> dict[str, list[int]]:
    return {name: block.flat().tolist() for name, block in support.items()}
