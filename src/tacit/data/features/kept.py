"""Files of tensors that were computed once, with a digest of what they hold: a damaged or edited one is refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tacit.errors import FileError
from tacit.files import write_atomically

CACHE_VARIABLE = "TACIT_CACHE"
_DIGEST = "sha256"


def cache_dir() -> Path:
    """The directory named by TACIT_CACHE, else a directory in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit" / "features"


def keep(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``tensors`` to ``path``, whole or not at all."""
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda place: save_file(held, str(place), {_DIGEST: _digest(held)}))


def read_kept(path: Path) -> dict[str, Tensor]:
    """What ``keep`` wrote to ``path``, mapped into memory: processes that read the same file share it."""
    try:
        if path.is_dir():
            raise OSError("it is a folder")
        with safe_open(str(path), framework="pt") as file:
            noted = (file.metadata() or {}).get(_DIGEST)
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if noted != _digest(held):
            raise OSError("it is damaged, or was edited")
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read: {error}; delete it to compute it again.") from error
    return held


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
