"""The scattering transform of order two with Morlet wavelets (Mallat, 2012; Oyallon and Mallat, 2015).

Wavelet moduli, averaged: stable to small shifts and deformations, and fixed in advance. No statistic of any
image enters it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.data.company import same_sized
from tacit.data.features.synthetic import Constants, Whitening

SCALES = 2
ANGLES = 8
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
"""Per colour: 1 average, 16 first moduli, 64 second ones from the finer to the coarser scale."""
_STEP = 2**SCALES
_CHUNK = 8


def scattering(images: Tensor) -> Iterator[Tensor]:
    """Scattering coefficients of images, (colours * 81, height / 4, width / 4) each, chunk by chunk.

    The sides of the images must be multiples of 4; edges are continued by reflection.
    """
    for part in torch.split(images, _CHUNK):
        yield same_sized(_of_few, part, _CHUNK)


def _of_few(images: Tensor) -> Tensor:
    colours = _coefficients(images.flatten(0, 1))
    return colours.view(len(images), -1, *colours.shape[2:])


def normalised_scattering(images: Tensor) -> Iterator[Tensor]:
    """Scattering coefficients as vectors of unit length, after each group of 27 channels of an image was brought to
    mean 0 and variance 1: group normalisation without parameters, which looks at one image at a time.
    """
    for maps in normalised_maps(images):
        yield maps.flatten(1)


def normalised_maps(images: Tensor) -> Iterator[Tensor]:
    """The same numbers as ``normalised_scattering``, left where they are in the image: (colours * 81, height / 4,
    width / 4), for networks that look at neighbourhoods.
    """
    for part in scattering(images):
        groups = part.flatten(1).view(len(part), part.shape[1] // 27, -1)
        scaled = F.layer_norm(groups, groups.shape[2:])
        yield F.normalize(scaled.flatten(1), dim=1).view_as(part)


def _unchanged(images: Tensor) -> Tensor:
    return images


class WhitenedScattering:
    """Normalised scattering coefficients, whitened by the statistics of synthetic images of the same shape.

    ``before`` is done to all images first, the synthetic ones among them.
    """

    def __init__(self, constants: Constants, before: Callable[[Tensor], Tensor] = _unchanged) -> None:
        self._whitening, self._before = Whitening(constants), before

    def __call__(self, images: Tensor) -> Iterator[Tensor]:
        """Vectors of unit length, chunk by chunk."""
        for part in torch.split(images, 512):
            for vectors in normalised_scattering(self._before(part)):
                yield same_sized(self._whitening, vectors, _CHUNK)


def scattering_constants(
    synthetic: Tensor, dimensions: int, before: Callable[[Tensor], Tensor] = _unchanged
) -> Constants:
    """How ``synthetic`` images whiten scattering coefficients."""
    vectors = torch.cat(list(normalised_scattering(before(synthetic))))
    return Whitening.fitted(vectors, dimensions, ridge=1.0).constants


def _coefficients(planes: Tensor) -> Tensor:
    """(planes, height, width) to (planes, 81, height / 4, width / 4)."""
    height, width = planes.shape[1:]
    padded = F.pad(planes[:, None], (_STEP,) * 4, mode="reflect")[:, 0]
    wavelets, averages = _filters(height + 2 * _STEP, width + 2 * _STEP)
    spectrum = torch.fft.fft2(padded)
    found = [_averaged(spectrum[:, None], averages[0], _STEP)]
    firsts, seconds = [], []
    for scale in range(SCALES):
        step = 2**scale
        modulus = torch.fft.ifft2(_folded(spectrum[:, None] * wavelets[scale], step)).abs()
        inner = torch.fft.fft2(modulus)
        firsts.append(_averaged(inner, averages[scale], _STEP // step))
        for coarser in range(scale + 1, SCALES):
            turned = inner[:, :, None] * _folded(wavelets[coarser], step, sum_only=True)
            deeper = torch.fft.ifft2(_folded(turned, 2 ** (coarser - scale))).abs().flatten(1, 2)
            seconds.append(_averaged(torch.fft.fft2(deeper), averages[coarser], _STEP // 2**coarser))
    return torch.cat([*found, *firsts, *seconds], 1)


def _averaged(spectrum: Tensor, average: Tensor, step: int) -> Tensor:
    """Smooth, keep every ``step``-th value, and cut off what came from the padding."""
    smooth: Tensor = torch.fft.ifft2(_folded(spectrum * average, step)).real
    return smooth[..., 1:-1, 1:-1]


def _folded(spectrum: Tensor, step: int, *, sum_only: bool = False) -> Tensor:
    """The spectrum of every ``step``-th value; with ``sum_only`` that of a filter for an image so thinned out."""
    if step == 1:
        return spectrum
    rows = sum(spectrum.chunk(step, -2), start=torch.zeros((), dtype=spectrum.dtype))
    total = sum(rows.chunk(step, -1), start=torch.zeros((), dtype=spectrum.dtype))
    return total if sum_only else total / step**2


@lru_cache(maxsize=4)
def _filters(height: int, width: int) -> tuple[list[Tensor], list[Tensor]]:
    """Spectra of the wavelets by scale, (angles, height, width), and of the average at each thinning."""
    wavelets = []
    for scale in range(SCALES):
        size, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
        bank = [_morlet(height, width, size, math.pi * turn / ANGLES, frequency) for turn in range(ANGLES)]
        wavelets.append(torch.stack(bank).to(torch.complex64))
    smooth = _gabor(height, width, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0)
    average = torch.fft.fft2(smooth / smooth.sum())
    averages = [_folded(average, 2**scale, sum_only=True).to(torch.complex64) for scale in range(SCALES)]
    return wavelets, averages


def _morlet(height: int, width: int, size: float, angle: float, frequency: float) -> Tensor:
    """The spectrum of a Gabor wave less the Gaussian that gives it mean zero."""
    slant = 4 / ANGLES
    wave = _gabor(height, width, size, angle, frequency, slant)
    bell = _gabor(height, width, size, angle, 0.0, slant)
    spectrum: Tensor = torch.fft.fft2(wave - wave.sum() / bell.sum() * bell)
    return spectrum


def _gabor(height: int, width: int, size: float, angle: float, frequency: float, slant: float) -> Tensor:
    """exp(iωu) under a Gaussian with axes ``size`` along u and ``size / slant`` across, wrapped around."""
    turn = torch.tensor(
        [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64
    )
    total = torch.zeros(height, width, dtype=torch.complex128)
    for wrap_rows in (-2, -1, 0, 1, 2):
        for wrap_columns in (-2, -1, 0, 1, 2):
            y = torch.arange(height, dtype=torch.float64)[:, None] + wrap_rows * height
            x = torch.arange(width, dtype=torch.float64)[None] + wrap_columns * width
            along = turn[0, 0] * x + turn[0, 1] * y
            across = turn[1, 0] * x + turn[1, 1] * y
            bell = torch.exp(-(along.square() + (slant * across).square()) / (2 * size**2))
            total += bell * torch.exp(1j * frequency * along)
    return total * slant / (2 * math.pi * size**2)
