"""Tensors and plain numbers in one safetensors file: nothing in it can run code when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tacit.errors import FileError
from tacit.files import decode_json, write_atomically


def write_tensors(path: Path, tensors: Mapping[str, Tensor], numbers: Any) -> None:
    """Write tensors and plain numbers with a digest of all of it, whole or not at all."""
    dense = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    text = json.dumps(numbers)
    about = {"numbers": text, "digest": tensors_digest(dense, text)}
    if _holds(path, about["digest"], dense):
        return  # whoever has noted the digest of the file still finds that file
    try:
        write_atomically(path, lambda place: save_file(dense, str(place), about))
    except SafetensorError as error:
        raise FileError(f"{path} cannot be written: {error}.") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what ``write_tensors`` wrote; a file in which a single bit has changed is refused."""
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            text, digest = about["numbers"], about["digest"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            numbers = decode_json(text)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    if tensors_digest(tensors, text) != digest:
        raise FileError(f"{path} is damaged: its digest does not fit its content.")
    return tensors, numbers


def _holds(path: Path, digest: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file holds, undamaged, these tensors and what else has this digest."""
    try:
        with safe_open(str(path), framework="pt") as file:
            if (file.metadata() or {}).get("digest") != digest:
                return False
        found, _ = read_tensors(path)
    except (OSError, SafetensorError, FileError):
        return False
    return _layout(found) == _layout(tensors)  # the digest does not tell where a name ends


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def tensors_digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of a text and of the names, shapes, types and every bit of tensors, in whatever order they come."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory; copy those that do."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.numel() and tensor.untyped_storage().data_ptr() in seen:
            tensors[name] = tensor.clone()
        seen.add(tensors[name].untyped_storage().data_ptr())
    return tensors
