"""The fixed transforms by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from tacit.errors import ArgumentError
from tacit.features.patches import Block, PatchFeatures
from tacit.features.scattering import WhitenedScattering

Shape = tuple[int, int, int]
Transform = Callable[[Tensor], Iterator[Tensor]]
"""From images (n, channels, height, width) with values in 0 .. 1 to vectors of unit length, chunk by chunk."""

_FINE = Block()
_COARSE = Block(patches=160, halvings=1, active=0.2, dimensions=2048, weight=0.6)
_FINE_UPRIGHT = Block(patches=256, components=128, dimensions=2048, synthetic=4_000)
_COARSE_UPRIGHT = Block(
    patches=128, halvings=1, active=0.2, components=64, dimensions=1024, weight=0.6, synthetic=4_000
)


@dataclass(frozen=True)
class Features:
    """A fixed transform: a function of one image that no data has influenced.

    ``version`` counts changes of what it computes, so that vectors kept on disk are not taken for another's.
    """

    about: str
    version: int
    make: Callable[[Shape], Transform]


def _scattering(shape: Shape) -> Transform:
    if shape[1] % 4 or shape[2] % 4:
        raise ArgumentError(
            f"Scattering needs images whose sides are multiples of 4, not {shape[1]} x {shape[2]}; resize them."
        )
    return WhitenedScattering(shape, dimensions=1024, synthetic=3_000)


def _patches(blocks: tuple[Block, ...], mirrored: bool, shape: Shape) -> Transform:
    if shape[1] != shape[2] or shape[1] < 16:
        raise ArgumentError(
            f"Patch features need square images of at least 16 x 16 pixels, not {shape[1]} x {shape[2]}."
        )
    return PatchFeatures(blocks, shape, mirrored=mirrored)


FEATURES: dict[str, Features] = {
    "scattering": Features(
        "Scattering coefficients of order two, two scales, eight angles, whitened by synthetic images.",
        2,
        _scattering,
    ),
    "patches": Features(
        "Responses to random patches of synthetic images, pooled, whitened; blind to left and right.",
        1,
        partial(_patches, (_FINE, _COARSE), True),
    ),
    "patches-upright": Features(
        "Responses to random patches of synthetic images, pooled, whitened.",
        1,
        partial(_patches, (_FINE_UPRIGHT, _COARSE_UPRIGHT), False),
    ),
}


def features(name: str) -> Features:
    """The transform ``name``."""
    if name not in FEATURES:
        raise ArgumentError(f"There are no features {name!r}; there are {', '.join(FEATURES)}.")
    return FEATURES[name]
