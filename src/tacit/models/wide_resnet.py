"""Wide residual networks with GroupNorm in place of BatchNorm, which mixes examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import ModelError

_GROUPS = 16


class PreActivationBlock(nn.Module):
    """Norm, ReLU, 3 x 3 convolution, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the shortcut and the two convolutions."""
        start = functional.relu(self.norm1(x))
        side = x if self.shortcut is None else self.shortcut(start)
        out: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(start)))) + side
        return out


class WideResNet(nn.Module):
    """WRN-``depth``-``factor`` (Zagoruyko and Komodakis, 2016) with GroupNorm of 16 groups; depth is 6 n
    + 4.
    """

    def __init__(self, channels: int, outputs: int, *, depth: int = 16, factor: int = 4) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ModelError(f"The depth of a wide residual network is 10, 16, 22, ...; got {depth}.")
        if factor < 1:
            raise ModelError(f"The widening factor must be at least 1, got {factor}.")
        blocks: list[nn.Module] = []
        width = 16
        for stage, base in enumerate((16, 32, 64)):
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(PreActivationBlock(width, base * factor, stride))
                width = base * factor
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(_GROUPS, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for images (batch, channels, height, width)."""
        out = functional.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(torch.mean(out, dim=(2, 3)))
        return logits
