"""Image folders that a user brings: one subfolder per class."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from tacit.data.images import image_task
from tacit.data.own import HELD_OUT
from tacit.data.readers import Bytes, pillow, unreadable
from tacit.data.split import held_out_mask
from tacit.data.task import Task
from tacit.errors import FileError, check_count

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_MOST_PIXELS = 1 << 28


def read_images(path: str | Path, *, size: int = 32, grey: bool = False, held_out: float = HELD_OUT) -> Task:
    """Read ``path``/<class>/<image> as a task; every image is resized to ``size`` x ``size``.

    Classes are the names of the subfolders in alphabetical order. An image is held out by a fixed hash of
    its file's bytes, so that copies of a file fall on the same side. Pixels are scaled from 0 .. 255 to
    -1 .. 1.
    """
    root = Path(path)
    check_count("size", size)
    if not root.is_dir():
        raise FileError(f"There is no folder {root}.")
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(folders) < 2:
        raise FileError(
            f"{root} must hold at least two subfolders of images, one per class; it holds {len(folders)}."
        )
    x, y, keys = [], [], []
    for label, folder in enumerate(folders):
        files = sorted(
            file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not files:
            raise FileError(f"The class folder {folder} holds no images ({', '.join(SUFFIXES)}).")
        for file in files:
            image, key = _read_image(file, size, grey)
            x.append(image)
            y.append(label)
            keys.append(key)
    pixels, marks = np.stack(x), np.array(y, np.int64)
    rest = held_out_mask(keys, held_out)
    if len(set(marks[~rest].tolist())) < len(folders) or not rest.any():
        raise FileError(f"{root} holds too few images ({len(x)}) to train on every class and hold some out.")
    return image_task(
        root.name or "images",
        (pixels[~rest], marks[~rest]),
        (pixels[rest], marks[rest]),
        tuple(folder.name for folder in folders),
        (
            f"Size {size} x {size} and scaling of pixel values 0 .. 255 to -1 .. 1: chosen without the "
            "images.",
            "Held-out images: a fixed hash of each file's bytes.",
        ),
        not_covered=("The names of the classes: they are the names of the folders.",),
    )


def _read_image(file: Path, size: int, grey: bool) -> tuple[Bytes, str]:
    image = pillow()
    try:
        raw = file.read_bytes()
        with image.open(file) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise FileError(f"The image {file} is too large ({opened.width} x {opened.height} pixels).")
            resized = opened.convert("L" if grey else "RGB").resize((size, size), image.Resampling.BILINEAR)
    except unreadable(image) as error:
        raise FileError(f"{file} is not a readable image: {error}.") from error
    pixels = np.asarray(resized, np.uint8).reshape(size, size, -1)
    return pixels, hashlib.sha256(raw).hexdigest()
