"""The two tanh networks in common use for private training from scratch (Papernot et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.errors import ModelError


def tanh_cnn(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Two convolutions (16 of 8 x 8, 32 of 4 x 4, stride 2) and 32 hidden units, for 28 x 28 images.

    With one channel and ten classes it has 26,010 coordinates.
    """
    features = nn.Sequential(
        nn.Conv2d(_channels(shape), 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    return _with_head(features, shape, 32, outputs)


def tanh_cnn_deep(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Six 3 x 3 convolutions (32, 32, 64, 64, 128, 128), pooled in pairs, and 128 hidden units, for CIFAR-10.

    With three channels of 32 x 32 and ten classes it has 550,570 coordinates.
    """
    layers: list[nn.Module] = []
    channels = _channels(shape)
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = width
    return _with_head(nn.Sequential(*layers, nn.Flatten()), shape, 128, outputs)


def _channels(shape: tuple[int, ...]) -> int:
    if len(shape) != 3:
        raise ModelError(
            f"A convolutional network takes images (channels, height, width), not the shape {shape}."
        )
    return shape[0]


def _with_head(features: nn.Sequential, shape: tuple[int, ...], hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *features, nn.Linear(_flat_size(features, shape), hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def _flat_size(features: nn.Sequential, shape: tuple[int, ...]) -> int:
    try:
        with torch.no_grad():
            out: Tensor = features(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise ModelError(f"Images of shape {shape} are too small for this network.") from error
    return out.shape[1]
