"""Tensors and plain numbers in one safetensors file: nothing in it can run code when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tacit.errors import FileError
from tacit.files import decode_json, write_atomically


def write_tensors(path: Path, tensors: Mapping[str, Tensor], numbers: Any) -> None:
    """Write tensors and plain numbers, whole or not at all."""
    dense = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    try:
        write_atomically(path, lambda place: save_file(dense, str(place), {"numbers": json.dumps(numbers)}))
    except SafetensorError as error:
        raise FileError(f"{path} cannot be written: {error}.") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what ``write_tensors`` wrote."""
    try:
        with safe_open(str(path), framework="pt") as file:
            numbers = decode_json((file.metadata() or {})["numbers"])
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
