"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tacit.errors import FileError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in place: a crash leaves old or new."""
    temporary = path.with_name(path.name + ".part")
    try:
        write(temporary)
        descriptor = os.open(temporary, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise FileError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    write_atomically(path, lambda p: p.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n"))


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], numbers: Any) -> None:
    """Write tensors and plain numbers to one safetensors file."""
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda p: save_file(_unshared(dense), str(p), {"numbers": json.dumps(numbers)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what ``write_tensors`` wrote."""
    try:
        with safe_open(str(path), framework="pt") as file:
            numbers = json.loads((file.metadata() or {})["numbers"])
            return {name: file.get_tensor(name) for name in file.keys()}, numbers  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a checkpoint: {error}.") from error


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory; copy those that do."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.numel() and tensor.untyped_storage().data_ptr() in seen:
            tensors[name] = tensor.clone()
        seen.add(tensors[name].untyped_storage().data_ptr())
    return tensors
