"""Images: idx and CIFAR files, folders with a subfolder per class."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.data import sources
from tacit.data.oddities import rare_folders
from tacit.data.read_table import HELD_OUT
from tacit.data.split_folders import folders, split_folders
from tacit.data.stored_images import MANY, MEASURED_ON, StoredImages, files_below
from tacit.data.table_file import (
    Bytes,
    check_labels,
    pillow,
    read_columns,
    read_idx,
    read_labels,
    read_mosaics,
    unreadable,
)
from tacit.data.table_task import labels, tensors
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, ImageInput, Share, Task, held_out_mask
from tacit.data.units import count_words, image_units, parted, unit_words
from tacit.errors import FileError, check_count

Part = tuple[Bytes, NDArray[np.int64]]

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GRADES = ("no retinopathy", "mild", "moderate", "severe", "proliferative")
_OFFICIAL_SPLIT = "Held-out images: the test part that was published with the data."
_FROM_BLACK = "Scaling: grey values 0 .. 255 to 0 .. 1."
_AROUND_GREY = "Scaling: pixel values 0 .. 255 to -1 .. 1."


def load_idx_task(name: str, data_dir: Path, download: bool) -> Task:
    """MNIST (``mnist``) or Fashion-MNIST (``fmnist``): 28 x 28 grey images of ten classes, black is 0."""
    files, classes = (sources.MNIST, DIGITS) if name == "mnist" else (sources.FMNIST, FASHION)
    parts = []
    for stem in ("train", "t10k"):
        images, marks = (
            sources.find_or_fetch(data_dir, files[key].file, files[key], download=download)
            for key in (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
        )
        x = read_idx(images)
        if x.ndim != 3 or x.shape[1:] != (28, 28):
            raise FileError(f"{images} holds an array of shape {x.shape}, not 28 x 28 images.")
        parts.append((x[..., None], check_labels(marks, read_idx(marks), len(x), len(classes))))
    return image_task(name, parts[0], parts[1], classes, (_FROM_BLACK, _OFFICIAL_SPLIT), around_grey=False)


def load_cifar10(data_dir: Path, download: bool) -> Task:
    """CIFAR-10: 32 x 32 colour images of ten classes."""
    parts = [_cifar_mosaics(data_dir, part) for part in ("train", "test")]
    if None in parts:
        archive = sources.find_or_fetch(data_dir, sources.CIFAR10.file, sources.CIFAR10, download=download)
        parts = [
            read_cifar_archive(archive, [f"data_batch_{i}.bin" for i in range(1, 6)]),
            read_cifar_archive(archive, ["test_batch.bin"]),
        ]
    train, test = parts
    assert train is not None
    assert test is not None
    return image_task("cifar10", train, test, CIFAR, (_AROUND_GREY, _OFFICIAL_SPLIT))


def _cifar_mosaics(data_dir: Path, part: str) -> Part | None:
    found = sources.find(
        data_dir, f"cifar10/cifar10-{part}-images.webps", f"cifar10/cifar10-{part}-labels.u8.gz"
    )
    if found is None:
        return None
    x = read_mosaics(found[0], 25, 40, 32)
    return x, read_labels(found[1], len(x), len(CIFAR))


def read_cifar_archive(path: Path, members: Sequence[str]) -> Part:
    """Read members of cifar-10-binary.tar.gz: records of a label and 3072 channel-first bytes."""
    records = []
    try:
        with tarfile.open(path) as archive:
            for member in members:
                file = archive.extractfile(f"cifar-10-batches-bin/{member}")
                records.append(np.frombuffer(file.read() if file else b"", np.uint8).reshape(-1, 3073))
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError, ValueError) as error:
        raise FileError(f"{path} is not the CIFAR-10 archive: {error}.") from error
    data = np.concatenate(records)
    x = data[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return x, check_labels(path, data[:, 0], len(data), len(CIFAR))


def load_pneumoniamnist(data_dir: Path, download: bool) -> Task:
    """PneumoniaMNIST: 28 x 28 chest X-rays, normal or pneumonia; the published validation part is not
    used.
    """
    found = sources.find(
        data_dir, "medical/pneumoniamnist-images.webps", "medical/pneumoniamnist-labels.u8.gz"
    )
    if found is not None:
        x = read_mosaics(found[0], 61, 96, 28)[..., :1]
        y = read_labels(found[1], len(x), 2)
        train, test = (x[:4708], y[:4708]), (x[5232:], y[5232:])
    else:
        path = sources.find_or_fetch(
            data_dir, sources.PNEUMONIAMNIST.file, sources.PNEUMONIAMNIST, download=download
        )
        train, test = read_medmnist(path, "train"), read_medmnist(path, "test")
    return image_task("pneumoniamnist", train, test, ("normal", "pneumonia"), (_AROUND_GREY, _OFFICIAL_SPLIT))


def read_medmnist(path: Path, part: str) -> Part:
    """Read one part of a MedMNIST file of 28 x 28 grey images with two classes."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            x, y = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise FileError(f"{path} is not a MedMNIST file: {error}.") from error
    if x.shape[1:] != (28, 28) or x.dtype != np.uint8 or y.dtype != np.uint8:
        raise FileError(f"{path} holds images of shape {x.shape} and type {x.dtype}, not 28 x 28 bytes.")
    return x[..., None], check_labels(path, y.reshape(-1), len(x), 2)


def load_aptos(data_dir: Path, any_grade: bool) -> Task:
    """APTOS 2019: retina photographs at 56 x 56, graded 0-4; ``any_grade`` asks if the grade is above 0.

    Some images are there more than once. Whether an image is held out depends on its pixels alone, so
    that all copies fall on the same side.
    """
    found = sources.find(data_dir, "medical/aptos2019-train-56px.webps", "medical/aptos2019-train.csv.gz")
    if found is None:
        raise FileError(
            f"medical/aptos2019-train-56px.webps and medical/aptos2019-train.csv.gz are not in {data_dir}; "
            "the set is given out by Kaggle to registered users and cannot be downloaded here."
        )
    y = read_aptos_grades(found[1])
    x = read_mosaics(found[0], 10, 37, 56)
    if len(x) < len(y):
        raise FileError(f"{found[0]} holds {len(x)} images, but {found[1]} grades {len(y)}.")
    x = x[: len(y)]
    held_out = held_out_mask((hashlib.sha256(image.tobytes()).hexdigest() for image in x), 0.2)
    if any_grade:
        y = (y > 0).astype(np.int64)
    return image_task(
        "aptos-any" if any_grade else "aptos",
        (x[~held_out], y[~held_out]),
        (x[held_out], y[held_out]),
        ("no retinopathy", "retinopathy") if any_grade else GRADES,
        (
            _AROUND_GREY,
            "Held-out images: a fixed hash of each image's pixels; copies of an image stay together.",
        ),
    )


def read_aptos_grades(path: Path) -> NDArray[np.int64]:
    """Read the column of grades of the APTOS table."""
    table = read_columns(path, separator=",")
    grades = list(table.columns.values())[1:2]
    if not grades or not all(cell in DIGITS[:5] for cell in grades[0]):
        raise FileError(f"{path} must hold grades 0-4 in its second column.")
    return np.array([int(cell) for cell in grades[0]], np.int64)


def load_digits() -> Task:
    """The 8 x 8 digits that come with scikit-learn (UCI, Alpaydin and Kaynak 1998), black is 0."""
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError as error:
        raise FileError("The digits come with scikit-learn: run pip install 'tacit-dp[data]'.") from error
    data = bundled()
    x = np.asarray(data.images, np.float32)[:, None] / 16
    y = np.asarray(data.target, np.int64)
    held_out = held_out_mask((hashlib.sha256(image.tobytes()).hexdigest() for image in x), 0.2)
    return Task(
        name="digits",
        train=tensors(x[~held_out], y[~held_out]),
        held_out=tensors(x[held_out], y[held_out]),
        kind="multiclass",
        input_shape=(1, 8, 8),
        classes=DIGITS,
        norm_bound=8.0,
        value_range=(0.0, 1.0),
        image=ImageInput((1, 8, 8), 0.0, 1.0),
        not_covered=(HELD_OUT_NOT_COVERED, COUNT_NOT_COVERED),
        public_sources=(
            "Scaling: grey values 0 .. 16 to 0 .. 1.",
            "Held-out images: a fixed hash of each image's pixels.",
        ),
    )


def image_task(
    name: str,
    train: Part,
    held_out: Part,
    classes: tuple[str, ...],
    public_sources: tuple[str, ...],
    *,
    around_grey: bool = True,
    not_covered: tuple[str, ...] = (),
) -> Task:
    """Build a task from byte images (n, height, width, channels), scaled to -1 .. 1 or to 0 .. 1."""
    binary = len(classes) == 2
    pairs = [tensors(_scaled(x, around_grey), labels(y, binary)) for x, y in (train, held_out)]
    channels, height, width = pairs[0].tensors[0].shape[1:]
    shape = (channels, height, width)
    low, high = (-1.0, 1.0) if around_grey else (0.0, 1.0)
    return Task(
        name=name,
        train=pairs[0],
        held_out=pairs[1],
        kind="binary" if binary else "multiclass",
        input_shape=shape,
        classes=classes,
        norm_bound=math.sqrt(math.prod(shape)),
        value_range=(low, high),
        image=ImageInput(shape, low, high),
        not_covered=(*not_covered, HELD_OUT_NOT_COVERED, COUNT_NOT_COVERED),
        public_sources=public_sources,
    )


def _scaled(x: Bytes, around_grey: bool) -> NDArray[np.float32]:
    out = np.ascontiguousarray(x.transpose(0, 3, 1, 2), dtype=np.float32)
    out /= 127.5 if around_grey else 255
    if around_grey:
        out -= 1
    return out


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_MOST_PIXELS = 1 << 28


def read_images(
    path: str | Path,
    *,
    size: int = 32,
    grey: bool = False,
    held_out: Share = HELD_OUT,
    unit: str | None = None,
) -> Task:
    """Read ``path``/<class>/<image> as a task; every image is resized to ``size`` x ``size``.

    Classes are the names of the subfolders in alphabetical order. An image is held out by a fixed hash of
    its file's bytes, so that copies of a file fall on the same side; with ``held_out`` 0 none is. Of more than 50,000
    images only the names are listed: they stay in their files, the hash is that of a file's path, and a few thousand
    held-out ones are measured on. Where the subfolders
    are called train and test (or val), these are the two sides, and the classes lie below them. Pixels are scaled from
    0 .. 255 to -1 .. 1.

    ``unit`` says whose each image is: a regular expression on its path below ``path`` (its groups, or all that it
    matches), or a CSV file with the columns file and unit. Images of one unit are held out together.
    """
    root = Path(path)
    check_count("size", size)
    if not root.is_dir():
        raise FileError(f"There is no folder {root}.")
    parts = split_folders(root)
    classes = sorted({folder.name for part in parts for folder in folders(part)})
    if len(classes) < 2:
        raise FileError(
            f"{root} must hold at least two subfolders of images, one per class; it holds {len(classes)}."
        )
    y: list[int] = []
    found: list[str] = []
    places: list[int] = []
    for place, part in enumerate(parts):
        for folder in folders(part):
            below = folder.relative_to(root).as_posix()
            files = [f"{below}/{path}" for path in sorted(files_below(folder)) if _is_image(path)]
            if not files:
                raise FileError(
                    f"The class folder {folder} holds no images ({', '.join(SUFFIXES)}); put some there, or take the "
                    "folder away."
                )
            found += files
            y += [classes.index(folder.name)] * len(files)
            places += [place] * len(files)
    ids = None if unit is None else image_units(found, root, unit)
    marks, stored = np.array(y, np.int64), len(found) > MANY
    if stored:
        keys = found
    else:
        read = _read_all(root, found, size, grey)
        x, keys = [image for image, _ in read], [key for _, key in read]
    if len(parts) > 1 and isinstance(held_out, tuple):
        raise FileError(f"{root} has a folder {parts[1].name} to measure on; leave out fold, or that folder.")
    if len(parts) > 1:
        rest = np.array(places) > 0
        split = f"Held-out images: those in the folder {parts[1].name}."
    elif held_out:
        rest = held_out_mask(keys if ids is None else ids, held_out)
        what = ("file's path" if stored else "file's bytes") if ids is None else "image's unit"
        split = f"Held-out images: a fixed hash of each {what}."
    else:
        rest, split = np.zeros(len(found), np.bool_), "No image is held out."
    left = set(marks[~rest].tolist())
    if len(left) < len(classes) and rest.any():
        name = next(name for place, name in enumerate(classes) if place not in left)
        raise FileError(
            f"{root} holds too few images of the class {name!r}: none is left to train on, because all are held out. "
            "Add images, or take the folder of this class away."
        )
    if held_out and not rest.any():
        raise FileError(f"{root} holds too few images ({len(found)}) to hold some out; add images.")
    measured_on = np.flatnonzero(rest)
    if stored:
        # One stands for the shape of the others, which stay where they are.
        places_of = np.linspace(0, len(measured_on) - 1, min(MEASURED_ON, len(measured_on))).astype(np.int64)
        measured_on, one = measured_on[np.unique(places_of)], np.flatnonzero(~rest)[:1]
        read_now = [_read_image(root / found[at], size, grey)[0] for at in (*one, *measured_on)]
        train, other = (
            (np.stack(read_now)[:1], marks[one]),
            (np.stack(read_now)[1:], marks[measured_on]),
        )
    else:
        every = np.stack(x)
        train, other = (every[~rest], marks[~rest]), (every[rest], marks[rest])
    task = image_task(
        root.name or "images",
        train,
        other,
        tuple(classes),
        (
            f"Size {size} x {size} and scaling of pixel values 0 .. 255 to -1 .. 1: chosen without the "
            "images.",
            split,
        ),
        not_covered=("The names of the classes: they are the names of the folders.",),
    )
    task = replace(task, warnings=tuple(rare_folders(classes, marks)))
    if stored:
        task = replace(task, train=_stored(root, found, marks, ~rest, task, size, grey))
    if not rest.any():
        kept = tuple(item for item in task.not_covered if item != HELD_OUT_NOT_COVERED)
        task = replace(task, held_out=None, not_covered=kept)
    if unit is None or ids is None:
        return task
    others_of = np.isin(np.arange(len(found)), measured_on)
    own, others = parted(ids, ~rest, others_of)
    covered = tuple(count_words(unit) if item == COUNT_NOT_COVERED else item for item in task.not_covered)
    return replace(task, unit=unit_words(unit), units=own, held_out_units=others, not_covered=covered)


def _is_image(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def _stored(
    root: Path,
    files: Sequence[str],
    marks: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    task: Task,
    size: int,
    grey: bool,
) -> StoredImages:
    """The chosen images, left in their files."""
    paths = [files[at] for at in np.flatnonzero(chosen).tolist()]
    assert task.image is not None
    return StoredImages(
        root,
        paths,
        labels(marks[chosen], task.kind == "binary"),
        task.image.shape,
        partial(_read_scaled, size=size, grey=grey),
    )


def _read_scaled(file: Path, *, size: int, grey: bool) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = _scaled(read_pixels(file, (size, size), grey=grey)[None], True)[0]
    return scaled


def read_pixels(file: Path | IO[bytes], size: tuple[int, int], *, grey: bool) -> Bytes:
    """The pixels of an image, (height, width, channels), resized to ``size``, its width and height."""
    image = pillow()
    try:
        with _without_warnings(), image.open(file) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise FileError(f"The image {file} is too large ({opened.width} x {opened.height} pixels).")
            pixels = _bytes(_upright(opened), file)
            mode = "L" if grey else "RGB"
            plain = pixels if pixels.mode == mode else pixels.convert(mode)
            resized = plain.resize(size, image.Resampling.BILINEAR)
    except unreadable(image) as error:
        raise FileError(f"{file} is not a readable image ({error}); remove it, or save it again.") from error
    return np.asarray(resized, np.uint8).reshape(size[1], size[0], -1)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Pillow warns of damaged notes, of transparency that is left out, and of large images, which are refused here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _upright(opened: Any) -> Any:
    """The image as its camera was held, where the file says so (EXIF)."""
    from PIL import ImageOps

    opened.load()
    # A damaged note is no note. Without a note nothing is copied, which for a large image is much.
    with contextlib.suppress(SyntaxError, ValueError, KeyError, TypeError, struct.error):
        ImageOps.exif_transpose(opened, in_place=True)
    return opened


def _bytes(opened: Any, file: Path | IO[bytes]) -> Any:
    """The image with a byte per value: pillow would cut a 16-bit image off at 255, which leaves it white."""
    mode: str = opened.mode
    if mode.startswith("I;16") or (mode == "I" and opened.format == "PNG"):  # older pillows call it I
        values = np.asarray(opened).astype(np.float64)
        return pillow().fromarray(np.round(values / 257).clip(0, 255).astype(np.uint8))
    if mode in ("I", "F"):
        raise FileError(
            f"The image {file} has 32 bits per pixel, and nothing says which values are black and white; save it with "
            "8 or 16 bits."
        )
    return opened


def _read_all(root: Path, paths: Sequence[str], size: int, grey: bool) -> list[tuple[Bytes, str]]:
    """The images and digests of all files. Those that cannot be read are counted before the first is refused."""
    read: list[tuple[Bytes, str]] = []
    refused: list[FileError] = []
    for path in paths:
        try:
            read.append(_read_image(root / path, size, grey))
        except FileError as error:
            refused.append(error)
    if len(refused) > 1:
        raise FileError(
            f"{len(refused)} of the {len(paths)} images in {root} cannot be used. The first: {refused[0]}"
        ) from refused[0]
    if refused:
        raise refused[0]
    return read


def _read_image(file: Path, size: int, grey: bool) -> tuple[Bytes, str]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise FileError(f"{file} is not a readable image ({error}); remove it, or save it again.") from error
    return read_pixels(file, (size, size), grey=grey), hashlib.sha256(raw).hexdigest()
