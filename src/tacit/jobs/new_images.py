"""New images as the tensors that a model was trained on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.data.images import SUFFIXES, read_pixels
from tacit.data.task import ImageInput
from tacit.errors import ArgumentError, FileError


def read_pictures(
    data: Any, image: ImageInput, features: str | None, signature: Sequence[float] | None
) -> tuple[Tensor, dict[str, Any]]:
    """Tensors of the images in a folder, however deep, or of one file or a list of files.

    Where they are vectors of fixed ``features``, those of this installation must have the ``signature`` of those that
    the model was trained on. A file that is no image keeps its row; its place is in ``unread``.
    """
    files, names = _files(data)
    channels, height, width = image.shape
    pixels = np.zeros((len(files), height, width, channels), np.uint8)
    unread = []
    for place, file in enumerate(files):
        try:
            pixels[place] = read_pixels(file, (width, height), grey=channels == 1)
        except FileError:
            unread.append(place)
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255
    if features is not None:
        from tacit.data.features import check_signature, computed
        from tacit.data.features import features as transform_of

        check_signature(features, image.shape, signature)
        x = computed(features, x, transform_of(features).make(image.shape))
    else:
        # The arithmetic of training, so that a training image gives the same numbers.
        x = torch.from_numpy(_scaled(pixels, image))
    return x, {"rows": tuple(names), "unread": tuple(unread)}


def _scaled(pixels: np.ndarray[Any, np.dtype[np.uint8]], image: ImageInput) -> np.ndarray[Any, Any]:
    out = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    if (image.low, image.high) == (-1.0, 1.0):
        out /= 127.5
        out -= 1
        return out
    out /= 255
    return out if (image.low, image.high) == (0.0, 1.0) else image.low + out * (image.high - image.low)


def _files(data: Any) -> tuple[list[Any], list[str]]:
    if isinstance(data, bytes):
        return [io.BytesIO(data)], ["image"]
    if isinstance(data, list | tuple):
        return [Path(file) for file in data], [str(file) for file in data]
    if not isinstance(data, str | Path):
        raise ArgumentError(
            f"This model takes images: a folder, a file or a list of files, not a {type(data).__name__}."
        )
    root = Path(data)
    if root.is_file():
        return [root], [root.name]
    if not root.is_dir():
        raise FileError(f"There is no folder and no image {root}.")
    files = sorted(file for file in root.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise FileError(f"{root} holds no images ({', '.join(SUFFIXES)}).")
    return list(files), [str(file.relative_to(root)) for file in files]
