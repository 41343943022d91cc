"""Features of a small convolutional network that was pretrained on synthetic images.

The weights come with the package. ``python -m tools.pretraining`` made them, from a seed and from no data set: the
network learned to tell which of many views show the same synthetic image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor

from tacit.data.company import same_sized
from tacit.data.features.synthetic import Constants, Whitening
from tacit.errors import FileError

STRIDES = (1, 2, 1, 2, 1, 2)
"""Of the convolutions, each of 3 × 3 and followed by a rectifier."""
WEIGHTS_FILE = "network.safetensors"
WEIGHTS_DIGEST = "9560e45fcfa996b004ec4304a9816a85e06ded9f28d878251d65d7a779001ca6"

_SHOWN = (3, 5)
"""Which convolutions the features are taken from."""
_GRID = 4
_AT_ONCE = 16
"""Images that the network sees at once."""
_WHITENED = 256
"""Images that are whitened at once."""
_RIDGE = 1.0


def network_weights() -> Constants:
    """The weights that come with the package."""
    data = resources.files(__package__).joinpath(WEIGHTS_FILE).read_bytes()
    if hashlib.sha256(data).hexdigest() != WEIGHTS_DIGEST:
        raise FileError(f"{WEIGHTS_FILE} of this installation is damaged; install Tacit again.")
    return {name: value.float() for name, value in load(data).items()}


def as_input(images: Tensor) -> Tensor:
    """Images with values in 0 .. 1 as the network takes them; grey images in three colours."""
    return (images.expand(-1, 3, -1, -1) - 0.5) * 4


class NetworkMaps:
    """What the network answers, averaged over cells of a raster and over the image and its mirror image."""

    def __init__(self, weights: Constants) -> None:
        self._weights = weights

    def __call__(self, images: Tensor) -> Tensor:
        """A vector for each image (values in 0 .. 1); each of the shown layers has unit length in it."""
        parts = [same_sized(self._few, few, _AT_ONCE) for few in torch.split(images, _AT_ONCE)]
        return torch.cat(parts)

    def layers(self, images: Tensor) -> Iterator[Tensor]:
        """The maps of every convolution, one after another."""
        maps = as_input(images).contiguous(memory_format=torch.channels_last)
        for place, stride in enumerate(STRIDES):
            weight, bias = self._weights[f"{place}.weight"], self._weights[f"{place}.bias"]
            maps = F.relu(F.conv2d(maps, weight, bias, stride, padding=1))
            yield maps

    def _few(self, images: Tensor) -> Tensor:
        both = zip(self._pooled(images), self._pooled(images.flip(3)), strict=True)
        return torch.cat([F.normalize((here + there).flatten(1), dim=1) for here, there in both], 1)

    def _pooled(self, images: Tensor) -> list[Tensor]:
        return [
            F.adaptive_avg_pool2d(maps, _GRID)
            for place, maps in enumerate(self.layers(images))
            if place in _SHOWN
        ]


class NetworkFeatures:
    """Whitened answers of the network, of unit length."""

    def __init__(self, constants: Constants) -> None:
        self._maps, self._whitening = NetworkMaps(network_weights()), Whitening(constants)

    def __call__(self, images: Tensor) -> Iterator[Tensor]:
        """The features of ``images`` (values in 0 .. 1), chunk by chunk."""
        for part in torch.split(images, _WHITENED):
            yield same_sized(self._whitening, self._maps(part), _WHITENED)


def network_constants(synthetic: Tensor, dimensions: int) -> Constants:
    """How the answers are whitened, by ``synthetic`` images of the size that is to be served."""
    with torch.no_grad():
        maps = NetworkMaps(network_weights())(synthetic)
    return Whitening.fitted(maps, dimensions, ridge=_RIDGE).constants
