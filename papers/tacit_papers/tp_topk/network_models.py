"""The convolutional networks of the paper's setting, as import paths that an experiment can name.

A CNN on scattering maps (Tramèr and Boneh, 2021; "H-CNN" in the TP-TopK paper) and a CNN on pixels. Those for
Fashion-MNIST have the published sizes. Those for CIFAR-10 are the same layers on more channels: the published ones cost
twenty to a hundred times as much per image.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from tacit.models.networks import tanh_cnn

CLASSES = 10
COEFFICIENTS = 81
"""Scattering maps per colour."""


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled input."""
        return self.factor * x


def scatternet_cnn(colours: int, side: int) -> nn.Sequential:
    """Two 3 x 3 convolutions (16 with stride 2, 32) and 32 hidden units, on scattering maps of ``side``."""
    maps, half = colours * COEFFICIENTS, (side + 1) // 2
    return nn.Sequential(
        # Maps of an image have length 1 together; now each number has mean square 1.
        Scale(math.sqrt(maps * side**2)),
        nn.Conv2d(maps, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * half**2, 32),
        nn.Tanh(),
        nn.Linear(32, CLASSES),
    )


def fmnist_scatternet_cnn() -> nn.Sequential:
    """33,066 coordinates."""
    return scatternet_cnn(1, 7)


def cifar10_scatternet_cnn() -> nn.Sequential:
    """56,394 coordinates."""
    return scatternet_cnn(3, 8)


def fmnist_cnn() -> nn.Sequential:
    """26,010 coordinates."""
    return tanh_cnn((1, 28, 28), CLASSES)


def cifar10_cnn() -> nn.Sequential:
    """The network for Fashion-MNIST on three colours."""
    return tanh_cnn((3, 32, 32), CLASSES)
