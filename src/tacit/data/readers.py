"""Readers of binary image files: IDX, and mosaics of lossless WebP images one after the other."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tacit.errors import FileError

Bytes = NDArray[np.uint8]
_UNSIGNED_BYTE = 0x08


def pillow() -> ModuleType:
    """Return ``PIL.Image``, or say how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("Reading images needs Pillow: run pip install 'tacit-dp[data]'.") from error
    return Image


def unreadable(image: ModuleType) -> tuple[type[Exception], ...]:
    """What Pillow raises at a file that is no image, or one that unpacks to far too many pixels."""
    bombs = (image.DecompressionBombError, image.DecompressionBombWarning)
    return (OSError, ValueError, SyntaxError, *bombs)


def read_gzip(path: Path) -> bytes:
    """Return the unpacked contents of a gzip file, or the contents of a file that is none."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def read_idx(path: Path) -> Bytes:
    """Read an IDX file of unsigned bytes (gzipped or not) into an array of the shape it states."""
    data = read_gzip(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE:
        raise FileError(f"{path} is not an IDX file of unsigned bytes.")
    start = 4 + 4 * data[3]
    if not 1 <= data[3] <= 4 or len(data) < start:
        raise FileError(f"The IDX file {path} has a header that cannot be right.")
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if math.prod(shape) != len(data) - start:
        raise FileError(f"The IDX file {path} states the shape {shape} but holds {len(data) - start} bytes.")
    if math.prod(shape) == 0:
        raise FileError(f"The IDX file {path} is empty.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_labels(path: Path, count: int, classes: int) -> NDArray[np.int64]:
    """Read ``count`` labels below ``classes``, one byte each, gzipped or not."""
    return check_labels(path, np.frombuffer(read_gzip(path), np.uint8), count, classes)


def check_labels(path: Path, labels: Bytes, count: int, classes: int) -> NDArray[np.int64]:
    """Return ``labels`` as int64 if there are ``count`` of them, all below ``classes``."""
    if labels.shape != (count,) or (count and int(labels.max()) >= classes):
        raise FileError(f"{path} does not hold {count} labels from 0 to {classes - 1}.")
    return labels.astype(np.int64)


def read_mosaics(path: Path, rows: int, columns: int, side: int) -> Bytes:
    """Read a file of WebP images, each a mosaic of ``rows`` x ``columns`` RGB tiles, as (n, side, side, 3).

    The RIFF header of each image tells where the next begins.
    """
    image = pillow()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    tiles, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] != b"RIFF" or end > len(data):
            raise FileError(f"{path} is cut short or is not a row of WebP images (byte {at}).")
        try:
            opened = image.open(io.BytesIO(data[at:end]))
            if opened.size != (columns * side, rows * side):
                raise FileError(f"{path} holds a mosaic of the wrong size at byte {at}.")
            mosaic = np.asarray(opened.convert("RGB"))
        except unreadable(image) as error:
            raise FileError(f"{path} holds an unreadable WebP image at byte {at}: {error}.") from error
        grid = mosaic.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
        tiles.append(grid.reshape(rows * columns, side, side, 3))
        at = end
    if not tiles:
        raise FileError(f"{path} is empty.")
    return np.concatenate(tiles)
