"""The fixed transforms by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from tacit.errors import ArgumentError
from tacit.features.figures import figures_on_black
from tacit.features.patches import Block, PatchFeatures
from tacit.features.scattering import WhitenedScattering
from tacit.features.slant import upright
from tacit.features.synthetic import dead_leaves

Shape = tuple[int, int, int]
Transform = Callable[[Tensor], Iterator[Tensor]]
"""From images (n, channels, height, width) with values in 0 .. 1 to vectors of unit length, chunk by chunk."""

_FINE = Block()
_COARSE = Block(patches=160, halvings=1, active=0.2, dimensions=2048, weight=0.6)
_SYNTHETIC = 4_500
_DIMENSIONS = 2_048


@dataclass(frozen=True)
class Features:
    """A fixed transform: a function of one image that no data has influenced.

    ``version`` counts changes of what it computes, so that vectors kept on disk are not taken for another's.
    """

    about: str
    version: int
    make: Callable[[Shape], Transform]


def _scattering(shape: Shape) -> Transform:
    channels, height, width = _multiples_of_four(shape)
    leaves = dead_leaves(_SYNTHETIC, max(height, width), channels)
    return WhitenedScattering(leaves[..., :height, :width], _DIMENSIONS)


def _scattering_on_black(shape: Shape, before: Callable[[Tensor], Tensor] | None = None) -> Transform:
    channels, height, width = _multiples_of_four(shape)
    if channels != 1:
        raise ArgumentError(
            f"Figures on a black ground are grey images, not of {channels} channels; use scattering."
        )
    figures = figures_on_black(_SYNTHETIC, max(height, width))
    return WhitenedScattering(figures[..., :height, :width], _DIMENSIONS, before)


def _scattering_upright(shape: Shape) -> Transform:
    return _scattering_on_black(shape, upright)


def _multiples_of_four(shape: Shape) -> Shape:
    if shape[1] % 4 or shape[2] % 4:
        raise ArgumentError(
            f"Scattering needs images whose sides are multiples of 4, not {shape[1]} x {shape[2]}; resize them."
        )
    return shape


def _patches(shape: Shape) -> Transform:
    if shape[1] != shape[2] or shape[1] < 16:
        raise ArgumentError(
            f"Patch features need square images of at least 16 x 16 pixels, not {shape[1]} x {shape[2]}."
        )
    return PatchFeatures((_FINE, _COARSE), shape, mirrored=True)


FEATURES: dict[str, Features] = {
    "scattering": Features(
        "Scattering coefficients of order two, two scales, eight angles, whitened by synthetic images.",
        3,
        _scattering,
    ),
    "scattering-on-black": Features(
        "Scattering coefficients, whitened by synthetic strokes and silhouettes on a black ground.",
        1,
        _scattering_on_black,
    ),
    "scattering-upright": Features(
        "Scattering coefficients of the figure set upright, whitened by synthetic figures on a black ground.",
        1,
        _scattering_upright,
    ),
    "patches": Features(
        "Responses to random patches of synthetic images, pooled, whitened; blind to left and right.",
        1,
        _patches,
    ),
}


def features(name: str) -> Features:
    """The transform ``name``."""
    if name not in FEATURES:
        raise ArgumentError(f"There are no features {name!r}; there are {', '.join(FEATURES)}.")
    return FEATURES[name]
