"""MobileNetV2, and public weights read from safetensors files."""

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
from torch.nn import functional

from tacit.data.sources import Source, find_or_fetch
from tacit.errors import ArgumentError, FileError, ModelError, check_count
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
            f"{path} is not the file that torchvision published; delete it, and it is downloaded again."
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


# (expansion, channels, blocks, stride of the first block), table 2 of the paper.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_LAST = 1280
_HEAD = "classifier.1."
# What the public weights were trained with (torchvision's documentation).
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that uses its stored statistics always: an affine layer, in which each example stays by itself.

    Its scale and shift are frozen too, unless they are made trainable.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        super().train(False)

    def train(self, mode: bool = True) -> FrozenBatchNorm2d:
        """Stay in evaluation mode, whatever ``mode`` is."""
        del mode
        super().train(False)
        return self


class ConvNormActivation(nn.Sequential):
    """Convolution, frozen BatchNorm, ReLU6."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
            FrozenBatchNorm2d(outputs),
            nn.ReLU6(),
        )


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; beside a shortcut where input and output have the same shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        widen = [] if expansion == 1 else [ConvNormActivation(inputs, hidden, kernel=1)]
        self.conv = nn.Sequential(
            *widen,
            ConvNormActivation(hidden, hidden, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            FrozenBatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.conv(x)
        return x + out if self.shortcut else out


class MobileNetV2(nn.Module):
    """MobileNetV2 for images scaled to -1 .. 1, grey or colour, of any size from 32 x 32.

    With ``image_size`` images of another size are resized first, each by itself. With ``first_block`` the network
    starts there: its input is what ``blocks(x, first_block)`` gave, computed once for a frozen beginning.
    """

    mean: Tensor
    std: Tensor
    blocks_in_all = 2 + sum(stage[2] for stage in _STAGES)

    def __init__(self, outputs: int, *, image_size: int | None = None, first_block: int = 0) -> None:
        super().__init__()
        if image_size is not None:
            check_count("image_size", image_size, least=32)
        if not 0 <= first_block <= self.blocks_in_all:
            raise ArgumentError(
                f"MobileNetV2 has {self.blocks_in_all} blocks; {first_block} of them cannot be frozen."
            )
        self.image_size, self.first_block = image_size, first_block
        layers: list[nn.Module] = [ConvNormActivation(3, 32, stride=2)]
        width = 32
        for expansion, channels, blocks, stride in _STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(width, channels, stride if block == 0 else 1, expansion))
                width = channels
        layers.append(ConvNormActivation(width, _LAST, kernel=1))
        self.features = nn.Sequential(*layers)
        # Dropout draws noise that no accountant sees; an identity keeps torchvision's name for the head.
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(_LAST, outputs))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        self.register_buffer("mean", torch.tensor(_IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(_IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for images (batch, 1 or 3, height, width), or for what the frozen blocks gave."""
        x = self.features[self.first_block :](x) if self.first_block else self.features(self._normalised(x))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits

    def blocks(self, x: Tensor, count: int) -> Tensor:
        """What the first ``count`` blocks make of images with values from -1 to 1; all blocks, the mean over places."""
        out: Tensor = self.features[:count](self._normalised(x))
        return out.mean((2, 3), keepdim=True) if count == self.blocks_in_all else out

    def _normalised(self, x: Tensor) -> Tensor:
        if self.image_size is not None and x.shape[2:] != (self.image_size, self.image_size):
            x = functional.interpolate(x, (self.image_size, self.image_size), mode="bilinear", antialias=True)
        return ((x.expand(-1, 3, -1, -1) + 1) / 2 - self.mean) / self.std

    def load_public(self, state: Mapping[str, Tensor]) -> None:
        """Load a public state dict, all of it but a head of another size, which keeps its fresh start."""
        load_state(self, state, "MobileNetV2", head=(f"{_HEAD}*",))
