"""Public weights: safetensors files, and one published file of torchvision that is known by its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tacit.data.download import Source
from tacit.data.sources import find_or_fetch
from tacit.errors import FileError, ModelError
from tacit.files import write_atomically

MOBILENET_V2 = Source(
    "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
    "weights/mobilenet_v2-b0353104.pth",
    "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
)
"""torchvision's IMAGENET1K_V1 weights."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a safetensors file; pickled files (.pth, .pt) are refused because reading
    runs code.
    """
    path = Path(path)
    if path.suffix.lower() in (".pth", ".pt", ".bin", ".pkl"):
        raise FileError(
            f"{path} is a pickled file; convert it once with "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), new_path)."
        )
    if not path.is_file():
        raise FileError(f"There is no file {path}.")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path} is not a readable safetensors file: {error}.") from error


def mobilenet_v2_weights(data_dir: Path, *, download: bool = True) -> dict[str, Tensor]:
    """The ImageNet weights of MobileNetV2 from ``data_dir``, or from where they are published.

    They are published as a pickled file. It is opened only if its SHA-256 is the published one, so that its content is
    known, and then by PyTorch's restricted reader; a safetensors copy in the user's cache serves from then on.
    """
    kept = cache_dir() / f"{Path(MOBILENET_V2.file).stem}.safetensors"
    if kept.is_file():
        return read_weights(kept)
    path = find_or_fetch(data_dir, MOBILENET_V2.file, MOBILENET_V2, download=download)
    if hashlib.sha256(path.read_bytes()).hexdigest() != MOBILENET_V2.digest:
        raise FileError(
            f"{path} is not the file that torchvision published; delete it, and it is fetched anew."
        )
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    write_atomically(kept, lambda place: save_file(state, place))
    return dict(state)


def cache_dir() -> Path:
    """Where converted public weights are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit" / "weights"


def load_state(
    model: nn.Module, state: Mapping[str, Tensor], name: str, *, head: Sequence[str] = ()
) -> list[str]:
    """Load ``state`` into ``model``, all of it and nothing else.

    Only parameters that match ``head`` may be missing or of another shape: they keep their fresh start, and their names
    are returned.
    """
    own = model.state_dict()
    fresh = [
        key
        for key in own
        if any(fnmatchcase(key, pattern) for pattern in head)
        and (key not in state or state[key].shape != own[key].shape)
    ]
    missing = [key for key in own if key not in state and key not in fresh]
    extra = [key for key in state if key not in own]
    if missing or extra:
        parts = [
            f"{word} {_some(keys)}" for word, keys in (("lack", missing), ("hold the unknown", extra)) if keys
        ]
        raise ModelError(f"The weights do not fit {name}: they {' and '.join(parts)}.")
    for key, value in own.items():
        if key not in fresh and state[key].shape != value.shape:
            raise ModelError(
                f"The weights do not fit {name}: {key!r} has the shape {tuple(state[key].shape)} instead of "
                f"{tuple(value.shape)}."
            )
    model.load_state_dict({**state, **{key: own[key] for key in fresh}})
    return fresh


def _some(keys: list[str]) -> str:
    shown = ", ".join(repr(key) for key in keys[:3])
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"
