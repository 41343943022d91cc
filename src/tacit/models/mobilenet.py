"""MobileNetV2 (Sandler et al., 2018) under torchvision's names, so that its public weights load."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import ArgumentError, check_count
from tacit.models.weights import load_state

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
        if not 0 <= first_block < self.blocks_in_all:
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
        """What the first ``count`` blocks make of images with values from -1 to 1."""
        out: Tensor = self.features[:count](self._normalised(x))
        return out

    def _normalised(self, x: Tensor) -> Tensor:
        if self.image_size is not None and x.shape[2:] != (self.image_size, self.image_size):
            x = functional.interpolate(x, (self.image_size, self.image_size), mode="bilinear", antialias=True)
        return ((x.expand(-1, 3, -1, -1) + 1) / 2 - self.mean) / self.std

    def load_public(self, state: Mapping[str, Tensor]) -> None:
        """Load a public state dict, all of it but a head of another size, which keeps its fresh start."""
        load_state(self, state, "MobileNetV2", head=(f"{_HEAD}*",))
