"""Vectors that were computed once are kept on disk, under a name made from the images and the transform.

They are as private as the images they were computed from.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tacit.errors import FileError
from tacit.features.registry import Shape, Transform, features
from tacit.files import write_atomically

CACHE_VARIABLE = "TACIT_CACHE"


def cache_dir() -> Path:
    """The directory named by TACIT_CACHE, else a directory in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit" / "features"


class FeatureCache:
    """Computes the vectors of sets of images, or reads those that were kept.

    A file is named by a digest of the images, the transform and its version, so another set or another
    version of the transform never finds it. Files are mapped into memory: processes that read the same one
    share it.
    """

    def __init__(self, name: str, directory: Path | None = None) -> None:
        self._name, self._features = name, features(name)
        self._directory = cache_dir() if directory is None else directory
        self._made: dict[Shape, Transform] = {}

    def vectors(self, images: Tensor) -> Tensor:
        """The vectors of images (n, channels, height, width) with values in 0 .. 1, one row per image."""
        path = self._directory / f"{self._name}-{self._digest(images)}.safetensors"
        if not path.exists():
            shape = (images.shape[1], images.shape[2], images.shape[3])
            if shape not in self._made:
                self._made[shape] = self._features.make(shape)
            with torch.no_grad():
                rows = torch.cat(list(self._made[shape](images)))
            write_atomically(path, lambda place: save_file({"rows": rows}, str(place)))
        try:
            with safe_open(str(path), framework="pt") as file:
                found: Tensor = file.get_tensor("rows")
        except (OSError, SafetensorError) as error:
            raise FileError(f"{path} cannot be read: {error}; delete it to compute it anew.") from error
        return found

    def _digest(self, images: Tensor) -> str:
        about = f"{self._name} {self._features.version} {tuple(images.shape)} {images.dtype}"
        digest = hashlib.sha256(about.encode())
        digest.update(images.contiguous().numpy().tobytes())
        return digest.hexdigest()[:24]
