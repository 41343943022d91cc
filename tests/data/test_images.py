from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data import load, read_images
from tacit.data.images import (
    load_aptos,
    load_idx_task,
    read_aptos_grades,
    read_cifar_archive,
    read_medmnist,
    read_pixels,
)
from tacit.errors import ArgumentError, FileError

RNG = np.random.default_rng(1)


def idx(array: np.ndarray) -> bytes:
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def put_mnist(root: Path, side: int = 28, labels: int = 4) -> None:
    (root / "mnist").mkdir(parents=True, exist_ok=True)
    for stem, count in (("train", 5), ("t10k", 3)):
        images = RNG.integers(0, 256, (count, side, side))
        (root / "mnist" / f"{stem}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (root / "mnist" / f"{stem}-labels-idx1-ubyte.gz").write_bytes(idx(np.full(count, labels)))


def test_mnist_layout(tmp_path: Path) -> None:
    put_mnist(tmp_path)
    task = load("mnist", tmp_path, download=False)
    x, y = task.train[0]
    assert x.shape == (1, 28, 28) == task.input_shape
    assert 0 <= x.min() < x.max() <= 1
    assert y.dtype == torch.int64
    assert (len(task.train), len(task.held_out), task.outputs) == (5, 3, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize(("side", "labels", "sentence"), [(27, 0, "28 x 28"), (28, 10, "labels from 0 to 9")])
def test_mnist_that_is_none(tmp_path: Path, side: int, labels: int, sentence: str) -> None:
    put_mnist(tmp_path, side, labels)
    with pytest.raises(FileError, match=sentence):
        load_idx_task("mnist", tmp_path, download=False)


def test_cifar_archive(tmp_path: Path) -> None:
    records = RNG.integers(0, 10, (4, 3073), dtype=np.uint8)
    path = tmp_path / "c.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        info.size = records.nbytes
        archive.addfile(info, io.BytesIO(records.tobytes()))
    x, y = read_cifar_archive(path, ["test_batch.bin"])
    assert x.shape == (4, 32, 32, 3)
    assert y.tolist() == records[:, 0].tolist()
    assert x[2, 5, 7, 1] == records[2, 1 + 1024 + 5 * 32 + 7]
    with pytest.raises(FileError, match="not the CIFAR-10 archive"):
        read_cifar_archive(path, ["data_batch_1.bin"])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match="not the CIFAR-10 archive"):
        read_cifar_archive(path, ["test_batch.bin"])


def test_medmnist_file(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    images = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    np.savez(path, train_images=images, train_labels=np.array([[0], [1], [1]], np.uint8))
    x, y = read_medmnist(path, "train")
    assert (x[..., 0] == images).all()
    assert y.tolist() == [0, 1, 1]
    with pytest.raises(FileError, match="not a MedMNIST"):
        read_medmnist(path, "test")
    path.write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(FileError, match="not a MedMNIST"):
        read_medmnist(path, "train")


def test_aptos_copies_fall_on_one_side(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "medical"
    folder.mkdir()
    different = RNG.integers(0, 256, (185, 56, 56, 3), dtype=np.uint8)
    tiles = np.concatenate([different, different])
    whole = tiles.reshape(10, 37, 56, 56, 3).transpose(0, 2, 1, 3, 4).reshape(560, 37 * 56, 3)
    image.fromarray(whole).save(
        folder / "aptos2019-train-56px.webps", "WEBP", lossless=True, exact=True, method=0
    )
    grades = "".join(f"id{i},{i % 5}\n" for i in range(370))
    (folder / "aptos2019-train.csv.gz").write_bytes(gzip.compress(f"id_code,diagnosis\n{grades}".encode()))
    task = load_aptos(tmp_path, any_grade=False)
    sides = [{x.numpy().tobytes() for x in part.tensors[0]} for part in (task.train, task.held_out)]  # type: ignore[attr-defined]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) == 185
    assert len(task.train) + len(task.held_out) == 370  # type: ignore[arg-type]
    assert load_aptos(tmp_path, any_grade=True).kind == "binary"
    bad = tmp_path / "g.csv"
    bad.write_text("id,diagnosis\na,7\n")
    with pytest.raises(FileError, match="grades 0-4"):
        read_aptos_grades(bad)


def test_digits_come_with_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    task = load("digits")
    x, y = task.train.tensors  # type: ignore[attr-defined]
    assert len(task.train) + len(task.held_out) == 1797  # type: ignore[arg-type]
    assert x.shape[1:] == (1, 8, 8)
    assert x.flatten(1).norm(dim=1).max() <= 8
    assert set(y.tolist()) == set(range(10))


def make_folder(root: Path, counts: dict[str, int]) -> Path:
    image = pytest.importorskip("PIL.Image")
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = RNG.integers(0, 256, (9 + i % 3, 12, 3), dtype=np.uint8)
            image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_image_folder(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets", {"dog": 20, "cat": 20, "ant": 20})
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / ".hidden").mkdir()
    task = read_images(root, size=16)
    assert task.classes == ("ant", "cat", "dog")
    assert task.input_shape == (3, 16, 16)
    assert len(task.train) + len(task.held_out) == 60  # type: ignore[arg-type]
    x = task.train.tensors[0]  # type: ignore[attr-defined]
    assert -1 <= x.min() < 0 < x.max() <= 1
    assert read_images(root, size=8, grey=True).input_shape == (1, 8, 8)


def test_classes_with_few_images_are_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets", {"dog": 20, "newt": 9, "ant": 20})
    (warning,) = read_images(root, size=8).warnings
    assert "fewer than 10 images cannot be learnt: 'newt'" in warning
    (root / "newt" / "more.png").write_bytes((root / "dog" / "0.png").read_bytes())
    assert read_images(root, size=8).warnings == ()


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_per_pixel_are_not_cut_off(tmp_path: Path, suffix: str) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("dark", "light"):
        (tmp_path / name).mkdir()
    for i in range(12):
        pixels = RNG.integers(0, 30_000, (9, 12)).astype(np.uint16)
        image.fromarray(pixels).save(tmp_path / "dark" / f"{i}.{suffix}")
        image.fromarray(pixels + 30_000).save(tmp_path / "light" / f"{i}.{suffix}")
    task = read_images(tmp_path, size=8)
    x, y = task.train.tensors  # type: ignore[attr-defined]
    light = y.flatten() == 1
    assert x[~light].mean() == pytest.approx(15_000 / 32_767.5 - 1, abs=0.05)
    assert x[light].mean() == pytest.approx(45_000 / 32_767.5 - 1, abs=0.05)


def test_pixels_without_a_known_range_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        image.fromarray(RNG.random((9, 12)).astype(np.float32)).save(tmp_path / name / "a.tif")
    with pytest.raises(FileError, match="32 bits per pixel"):
        read_images(tmp_path)


def test_image_folders_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no folder"):
        read_images(tmp_path / "absent")
    root = make_folder(tmp_path / "a", {"one": 3})
    with pytest.raises(FileError, match="at least two subfolders"):
        read_images(root)
    (root / "two").mkdir()
    with pytest.raises(FileError, match="holds no images"):
        read_images(root)
    (root / "two" / "x.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(FileError, match=r"x.png is not a readable image .* remove it, or save it again"):
        read_images(root)
    (root / "one" / "y.png").write_bytes(b"")
    with pytest.raises(
        FileError, match=r"2 of the 5 images in .*a cannot be used. The first: .*y.png is not"
    ):
        read_images(root)
    with pytest.raises(ArgumentError, match="size"):
        read_images(root, size=0)
    with pytest.raises(FileError, match="too few images"):
        read_images(make_folder(tmp_path / "b", {"one": 1, "two": 1}))
    rare = make_folder(tmp_path / "c", {"train/one": 3, "train/two": 3, "test/one": 3, "test/three": 2})
    with pytest.raises(FileError, match=r"class 'three': none is left to train on"):
        read_images(rare)


def test_a_photograph_is_read_as_its_camera_was_held(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.new("RGB", (20, 10), (255, 0, 0))
    picture.paste((0, 0, 255), (10, 0, 20, 10))
    note = image.Exif()
    note[0x0112] = 6  # turned by a quarter, to the right
    picture.save(tmp_path / "held.png", exif=note)
    picture.save(tmp_path / "broken.png", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    held = read_pixels(tmp_path / "held.png", (4, 4), grey=False)
    assert held[0, :, 0].min() > 200
    assert held[3, :, 2].min() > 200
    broken = read_pixels(tmp_path / "broken.png", (4, 4), grey=False)
    assert broken[:, 0, 0].min() > 200


def test_a_large_photograph_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (20, 10), (255, 0, 0)).save(tmp_path / "large.png")

    def copied(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(image.Image, "copy", copied)
    assert read_pixels(tmp_path / "large.png", (4, 4), grey=False)[..., 0].min() == 255


@pytest.mark.filterwarnings("error")
def test_transparency_is_left_out_in_silence(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, 255, 255, 255])
    picture.save(tmp_path / "seen.png", transparency=b"\xff\x00")
    assert read_pixels(tmp_path / "seen.png", (4, 4), grey=False).min() == 255
