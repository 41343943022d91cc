from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.data.features.company import assert_tells_of_no_company
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.data.features import (
    CACHE_VARIABLE,
    FEATURES,
    before_features,
    check_signature,
    dead_leaves,
    on_features,
    patches,
    registry,
    signature,
)
from tacit.data.features.kept import keep, read_kept
from tacit.data.features.registry import FeatureCache, Features
from tacit.errors import ArgumentError, FileError
from tacit.tensors import write_tensors


@pytest.fixture(autouse=True)
def few_synthetic_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SYNTHETIC", 150)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "constants"))


def small_task(**changes: object) -> Task:
    generator = torch.Generator().manual_seed(1)
    parts = [
        TensorDataset(torch.rand(n, 1, 16, 16, generator=generator), torch.arange(n) % 3) for n in (30, 10)
    ]
    task = Task("small", *parts, "multiclass", (1, 16, 16), ("a", "b", "c"), value_range=(0.0, 1.0))
    return replace(task, **changes)  # type: ignore[arg-type]


def test_a_task_on_features_keeps_its_labels_and_says_where_the_features_come_from(tmp_path: Path) -> None:
    task = small_task()
    found = on_features(task, "scattering", tmp_path)
    assert found.input_shape == tuple(found.train.tensors[0].shape[1:])  # type: ignore[attr-defined]
    assert 100 < found.input_shape[0] < 150
    assert found.norm_bound == 1.0
    assert torch.equal(found.train.tensors[1], task.train.tensors[1])  # type: ignore[attr-defined]
    assert any("scattering" in sentence for sentence in found.public_sources)


def test_the_range_of_values_is_undone_before_the_transform(tmp_path: Path) -> None:
    task = small_task()
    images, labels = task.train.tensors  # type: ignore[attr-defined]
    around = replace(task, train=TensorDataset(2 * images - 1, labels), value_range=(-1.0, 1.0))
    one, two = (on_features(t, "scattering", tmp_path).train.tensors[0] for t in (task, around))  # type: ignore[attr-defined]
    torch.testing.assert_close(one, two, atol=1e-4, rtol=0)


def test_vectors_are_computed_once_and_never_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def make(shape: tuple[int, int, int]) -> object:
        def transform(images: torch.Tensor) -> object:
            calls.append(len(images))
            yield images.flatten(1)[:, :5]

        return transform

    monkeypatch.setitem(FEATURES, "counted", Features("Counted.", 1, make))  # type: ignore[arg-type]
    images = torch.rand(4, 1, 16, 16)
    first = FeatureCache("counted", tmp_path).vectors(images)
    assert torch.equal(FeatureCache("counted", tmp_path).vectors(images), first)
    assert calls == [4]
    other = images.clone()
    other[3, 0, 15, 15] += 0.25
    FeatureCache("counted", tmp_path).vectors(other)
    assert calls == [4, 4]
    monkeypatch.setitem(FEATURES, "counted", Features("Counted.", 2, make))  # type: ignore[arg-type]
    FeatureCache("counted", tmp_path).vectors(images)
    assert calls == [4, 4, 4]


def test_constants_are_computed_once_and_never_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted: list[int] = []

    def paint(count: int, *others: int) -> torch.Tensor:
        painted.append(count)
        return dead_leaves(count, *others)

    monkeypatch.setattr(registry, "dead_leaves", paint)
    images = torch.rand(9, 1, 16, 16)
    first, again = (torch.cat(list(FEATURES["scattering"].make((1, 16, 16))(images))) for _ in range(2))
    assert torch.equal(first, again)
    assert painted == [150]
    monkeypatch.setattr(registry, "_SYNTHETIC", 140)
    FEATURES["scattering"].make((1, 16, 16))
    FEATURES["scattering"].make((1, 20, 20))
    assert painted == [150, 140, 140]
    for path in (tmp_path / "constants").iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(FileError, match="delete it"):
        FEATURES["scattering"].make((1, 16, 16))


@pytest.mark.parametrize("count", [2, 7, 9, 17])
def test_no_bit_of_a_vector_tells_of_other_images(count: int) -> None:
    assert_tells_of_no_company(FEATURES["scattering"].make((1, 16, 16)), torch.rand(count, 1, 16, 16))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    images = torch.rand(2, 1, 16, 16)
    FeatureCache("scattering", tmp_path).vectors(images)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(FileError, match="delete it"):
        FeatureCache("scattering", tmp_path).vectors(images)


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: {"others": rows},
        lambda rows: {"rows": rows[:-1]},
        lambda rows: {"rows": rows[:, :-1].contiguous()},
        lambda rows: {"rows": rows.flip(0)},
        lambda rows: {"rows": 1e6 * rows},
        lambda rows: {"rows": torch.full_like(rows, math.nan)},
        lambda rows: {"rows": torch.where(torch.arange(40)[:, None] == 3, math.inf, rows)},
        lambda rows: {"rows": rows.to(torch.int64)},
        lambda rows: {"rows": rows.half()},
        lambda rows: {"rows": rows.to(torch.float8_e4m3fn)},
        lambda rows: {"rows": rows + 1e-6},
        lambda rows: {"rows": rows[0, 0]},
        lambda rows: {},
    ],
)
def test_kept_vectors_that_are_not_those_of_the_images_are_refused(
    tmp_path: Path, edit: Callable[[torch.Tensor], dict[str, torch.Tensor]]
) -> None:
    images = torch.rand(40, 1, 16, 16)
    rows = FeatureCache("scattering", tmp_path).vectors(images).clone()
    (file,) = tmp_path.glob("*.safetensors")
    with safe_open(str(file), framework="pt") as opened:
        noted = opened.metadata()
    for about in (noted, None):
        save_file(edit(rows), str(file), about)
        with pytest.raises(FileError, match="delete it to compute it again"):
            FeatureCache("scattering", tmp_path).vectors(images)
    file.unlink()
    file.mkdir()
    with pytest.raises(FileError, match="is a folder where a file of features belongs"):
        FeatureCache("scattering", tmp_path).vectors(images)


def test_vectors_that_were_made_for_others_are_refused_under_another_name(tmp_path: Path) -> None:
    """What a copy of a file holds is whole, but it is not what belongs there."""
    here, there = torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16)
    cache = FeatureCache("scattering-maps", tmp_path)
    cache.vectors(here)
    (file,) = tmp_path.glob("*.safetensors")
    cache.vectors(there)
    (other,) = set(tmp_path.glob("*.safetensors")) - {file}
    shutil.copy(file, other)
    with pytest.raises(FileError, match=r"made for other images.*delete it"):
        cache.vectors(there)
    for kept in (
        {"others": torch.zeros(2, 3)},
        {"rows": torch.zeros(1, 3)},
        {"rows": torch.zeros(2, 3).long()},
    ):
        for about in ({"name": other.stem}, None):  # earlier versions noted no name
            write_tensors(other, kept, about)
            with pytest.raises(FileError, match="a vector for each image; delete it"):
                cache.vectors(there)


def test_edited_constants_are_refused(tmp_path: Path) -> None:
    FEATURES["scattering"].make((1, 16, 16))
    (file,) = (tmp_path / "constants").iterdir()
    constants = read_kept(file)
    for edited in (
        {**constants, "mean": constants["mean"][:-1].contiguous()},
        {**constants, "mean": torch.full_like(constants["mean"], math.nan)},
        {"scaled": constants["scaled"]},
    ):
        save_file(edited, str(file))
        with pytest.raises(FileError, match="delete it to compute it again"):
            FEATURES["scattering"].make((1, 16, 16))


def test_the_signature_tells_one_transform_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (1, 16, 16)
    found = signature("scattering", shape)
    check_signature("scattering", shape, found)
    check_signature("scattering", shape, [value + 1e-5 for value in found])
    with pytest.raises(FileError, match="earlier version"):
        check_signature("scattering", shape, None)
    for wrong in ((), found[:-1], [value + 0.01 for value in found], [math.nan] * len(found)):
        with pytest.raises(FileError, match="trained on other features 'scattering'"):
            check_signature("scattering", shape, wrong)
    (file,) = (tmp_path / "constants").iterdir()
    constants = read_kept(file)
    one_turned = constants["scaled"] * torch.where(torch.arange(constants["scaled"].shape[1]) == 5, -1.0, 1.0)
    keep(file, {**constants, "scaled": one_turned})
    with pytest.raises(FileError, match="trained on other features"):
        check_signature("scattering", shape, found)


def test_what_is_no_image_has_no_features(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="public range"):
        on_features(small_task(value_range=None), "scattering", tmp_path)
    with pytest.raises(ArgumentError, match="There are no features 'sift'; there are scattering"):
        on_features(small_task(), "sift", tmp_path)


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_planned_by_has_the_shape_of_what_is_computed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, fewer in (("_SYNTHETIC", 60), ("_CLOSE_UPS", 60), ("_DIMENSIONS", 16)):
        monkeypatch.setattr(registry, setting, fewer)
    monkeypatch.setattr(patches, "_PATCHES", 2_000)
    for block, components in (("_FINE", 3), ("_COARSE", 2), ("_SIDED", 1)):
        small = replace(
            getattr(registry, block), patches=8, components=components, dimensions=32, synthetic=60
        )
        monkeypatch.setattr(registry, block, small)
    task = small_task()
    planned, found = before_features(task, name), on_features(task, name, tmp_path)
    assert planned is not None
    assert planned.input_shape == found.input_shape
    for one, other in ((planned.train, found.train), (planned.held_out, found.held_out)):
        assert isinstance(one, TensorDataset)
        assert isinstance(other, TensorDataset)
        assert one.tensors[0].shape == other.tensors[0].shape
        assert torch.equal(one.tensors[1], other.tensors[1])
    assert replace(planned, train=found.train, held_out=found.held_out) == found
    assert planned.train.tensors[0].untyped_storage().nbytes() < 20_000  # type: ignore[attr-defined]


def test_a_size_that_features_do_not_serve_is_refused_before_they_are_computed() -> None:
    odd = TensorDataset(torch.rand(4, 1, 30, 20), torch.arange(4) % 3)
    task = small_task(train=odd, held_out=None, input_shape=(1, 30, 20))
    for name, sentence in (("patches", "square images"), ("scattering", "multiples of 4")):
        with pytest.raises(ArgumentError, match=sentence):
            before_features(task, name)
    with pytest.raises(ArgumentError, match="grey images"):
        before_features(replace(task, input_shape=(3, 32, 32)), "scattering-on-black")
    with pytest.raises(ArgumentError, match="one colour or three"):
        before_features(replace(task, input_shape=(4, 32, 32)), "network")
