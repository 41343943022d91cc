"""A folder of very many images: listed, not read; the same tensors as in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data import images, read_images
from tacit.data.stored_images import StoredImages, files_below
from tacit.jobs import fingerprint as fingerprints

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for name in ("cats", "dogs", "eels"):
        for number in range(12):
            place = tmp_path / "pets" / name / f"owner{number % 4}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(256, size=(9, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"é {number}.png")
    (tmp_path / "pets" / "cats" / "notes.txt").write_text("no image")
    return tmp_path / "pets"


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MANY", 20)
    monkeypatch.setattr(images, "MEASURED_ON", 5)
    monkeypatch.setattr(fingerprints, "MANY", 20)


def contents(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> set[tuple[bytes, int]]:
    return {(x.numpy().tobytes(), int(y)) for x, y in rows}


def test_images_in_files_are_those_in_memory(folder: Path, few_are_many: None) -> None:
    stored = read_images(folder, size=8)
    assert isinstance(stored.train, StoredImages)
    images.MANY = 100
    plain = read_images(folder, size=8, held_out=0.0)
    every = contents([plain.train[i] for i in range(36)])
    train = [stored.train[i] for i in range(len(stored.train))]
    assert stored.held_out is not None
    held_out = [stored.held_out[i] for i in range(len(stored.held_out))]  # type: ignore[arg-type]
    assert 20 < len(train) < 36
    assert 0 < len(held_out) <= 5
    assert contents(train) <= every  # type: ignore[arg-type]
    assert contents(held_out) <= every  # type: ignore[arg-type]
    assert not contents(train) & contents(held_out)  # type: ignore[arg-type]
    assert (stored.input_shape, stored.classes, stored.kind) == (plain.input_shape, plain.classes, plain.kind)
    assert train[0][0].dtype == torch.float32
    assert "file's path" in " ".join(stored.public_sources)


def test_units_stay_together(folder: Path, few_are_many: None) -> None:
    task = read_images(folder, size=8, unit=r"[a-z]+/owner\d")
    assert task.units is not None
    assert task.held_out_units is not None
    assert len(task.units) == len(task.train)  # type: ignore[arg-type]
    assert len(task.held_out_units) == len(task.held_out)  # type: ignore[arg-type]
    assert not set(task.units) & set(task.held_out_units)


def test_a_broken_image_stops_nothing(folder: Path, few_are_many: None) -> None:
    task = read_images(folder, size=8, held_out=0.0)
    assert isinstance(task.train, StoredImages)
    assert task.held_out is None
    task.train.path(7).write_bytes(b"no image")
    x, y = task.train[7]
    assert not x.any()
    assert y == 0
    assert task.train[-1][1] == 2
    with pytest.raises(IndexError):
        task.train[36]


def test_a_folder_is_listed_without_a_look_at_its_files(
    folder: Path, few_are_many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setenv("TACIT_BUDGETS", str(folder.parent / "budgets"))
    first = fingerprints.fingerprint(folder)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: pytest.fail("a file was looked at"))
    assert set(files_below(folder)) == names
    monkeypatch.undo()
    monkeypatch.setenv("TACIT_BUDGETS", str(folder.parent / "budgets"))
    monkeypatch.setattr(fingerprints, "MANY", 20)
    (folder / "cats" / "notes.txt").write_text("other words")
    assert fingerprints.fingerprint(folder) == first  # names alone, as documented
    (folder / "cats" / "notes.txt").rename(folder / "cats" / "more.txt")
    assert fingerprints.fingerprint(folder) != first
