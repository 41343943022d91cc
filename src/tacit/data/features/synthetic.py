"""Synthetic images, and whitening by their statistics: no data set goes into features."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Constants = dict[str, Tensor]
"""What a transform has learned from synthetic images, by name."""


def principal_axes(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the second moment of ``vectors`` (one per row), ascending, and its eigenvectors, one per column.

    A model must find on another machine the features that it was trained on. Processors round differently, and
    libraries choose signs as they like: in single precision neighbouring directions come out turned into each other.
    So the sums are in double precision, and the sign is the one that makes a fixed weighted sum of entries positive.
    """
    vectors = vectors.double()
    spread, axes = torch.linalg.eigh(vectors.T @ vectors / len(vectors))
    weights = torch.arange(len(axes), dtype=torch.float64).cos()
    return spread, torch.where(weights @ axes < 0, -axes, axes)


class Whitening:
    """Principal components of vectors of synthetic images, brought closer to equal variance.

    With eigenvalues eⱼ of their second moment and ē the mean over all directions, direction j is scaled by
    (eⱼ + ridge · ē)^(−1/2): strong directions, which most images share, no longer drown the others, and directions
    that synthetic images hardly have are not blown up. At most ``dimensions`` directions are kept, the strongest.
    What comes out has unit length. Training on it needs far fewer
    steps than on the vectors themselves, and under privacy every step costs ε.
    """

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    @classmethod
    def fitted(cls, vectors: Tensor, dimensions: int, ridge: float = 4.0) -> Whitening:
        """By the vectors of synthetic images."""
        count, inputs = vectors.shape
        mean = vectors.mean(0)
        centred = F.normalize(vectors - mean, dim=1).double()
        few = count < inputs  # then the small matrix of products between images gives the same directions
        spread, axes = principal_axes(centred.T if few else centred)
        if few:
            spread = spread * (inputs / count)
        kept = min(dimensions, int((spread > 1e-6 * spread[-1]).sum()))
        spread, axes = spread.flip(0)[:kept], axes.flip(1)[:, :kept]
        directions = centred.T @ (axes / (count * spread).sqrt()) if few else axes
        floor = ridge * float(centred.square().sum()) / (count * inputs)
        return cls(
            {"mean": mean, "scaled": (directions * (spread + floor).rsqrt()).to(mean.dtype).contiguous()}
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        """Whitened vectors of unit length, one row per vector."""
        mean, scaled = self.constants["mean"], self.constants["scaled"]
        return F.normalize(F.normalize(vectors - mean, dim=1) @ scaled, dim=1)


_LEAVES = 90
_SMALLEST = 2.0
_FINER = 2
"""Painted this many times finer than shown, which softens the edges."""
_LARGEST = 0.7
"""Of the side of the image."""


def dead_leaves(count: int, size: int, channels: int, seed: int = 0) -> Tensor:
    """``count`` images of shape (channels, size, size) with values in 0 .. 1, the same for the same seed.

    Discs and turned rectangles with radii of density r⁻³ cover one another, each with a colour and a linear shading of
    its own; 1/f noise lies over all. Edges at all scales, occlusion and smooth regions give images whose local
    statistics resemble those of photographs, although no photograph was used.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for at in range(0, count, 250):
        fine = _paint(min(250, count - at), size * _FINER, generator)
        parts.append(F.avg_pool2d(fine, _FINER))
    images = torch.cat(parts)
    images = (images + 0.06 * _pink(count, size, generator)).clamp(0, 1)
    if channels == 3:
        return images
    return images.mean(1, keepdim=True).expand(-1, channels, -1, -1).contiguous()


_WIDER = 1.5
_CLOSEST, _FARTHEST = 0.3, 0.62
_CONTRAST, _BRIGHTNESS, _TINT, _COLOUR = 0.3, 0.1, 0.05, 0.15


def close_ups(count: int, size: int, channels: int, seed: int = 0) -> Tensor:
    """``count`` parts of dead leaves, enlarged, each with a contrast, a brightness and a light of its own.

    Photographs differ from one another in these more than dead leaves do, and what they show is smoother: features
    whitened by close-ups have less in common among photographs. Shape and values as of :func:`dead_leaves`.
    """
    leaves = dead_leaves(-(-count // 2), round(_WIDER * size), channels, seed)
    leaves = torch.cat([leaves, leaves])[:count]  # two parts of each: painting is what takes time
    generator = torch.Generator().manual_seed(seed + 1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    side = _CLOSEST + (_FARTHEST - _CLOSEST) * torch.rand(count, generator=generator)
    away = (1 - side)[:, None] * (2 * torch.rand(count, 2, generator=generator) - 1)
    places = torch.zeros(count, 2, 3)
    places[:, 0, 0] = places[:, 1, 1] = side
    places[:, :, 2] = away
    grid = F.affine_grid(places, [count, channels, size, size], align_corners=False)
    seen = F.grid_sample(leaves, grid, align_corners=False, padding_mode="border")
    mean = seen.mean((1, 2, 3), keepdim=True)
    gain = (1 + _CONTRAST * normal(1, 1, 1)) * (1 + _COLOUR * normal(channels, 1, 1))
    light = _BRIGHTNESS * normal(1, 1, 1) + _TINT * normal(channels, 1, 1)
    return (mean + (seen - mean) * gain + light).clamp(0, 1)


def _paint(count: int, size: int, generator: torch.Generator) -> Tensor:
    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    rows, columns = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    images = (uniform(count, 1, 1, 1) + 0.1 * normal(count, 3, 1, 1)).expand(-1, -1, size, size)
    least, most = (_SMALLEST * _FINER) ** -2, (_LARGEST * size) ** -2
    for _ in range(_LEAVES):
        radius = (least + (most - least) * uniform(count, 1, 1)).rsqrt()
        y = rows - uniform(count, 1, 1, low=-0.1 * size, high=1.1 * size)
        x = columns - uniform(count, 1, 1, low=-0.1 * size, high=1.1 * size)
        angle = uniform(count, 1, 1, high=math.pi)
        along = x * angle.cos() + y * angle.sin()
        across = y * angle.cos() - x * angle.sin()
        disc = along.square() + across.square() <= radius.square()
        narrow = radius * uniform(count, 1, 1, low=0.15)
        rectangle = (along.abs() <= radius) & (across.abs() <= narrow)
        inside = torch.where(uniform(count, 1, 1) < 0.5, disc, rectangle)[:, None]
        grey, tint = uniform(count, 1, 1, 1), 0.1 * normal(count, 3, 1, 1)
        shading = 0.15 * normal(count, 1, 1) * along / radius
        images = torch.where(inside, grey + tint + shading[:, None], images)
    return images


def _pink(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Noise with a spectrum of 1/f and unit variance."""
    white = torch.randn(count, 3, size, size, generator=generator)
    frequency = torch.fft.fftfreq(size)
    amplitude = (frequency[:, None].square() + frequency.square()).sqrt()
    amplitude[0, 0] = 1.0
    noise: Tensor = torch.fft.ifft2(torch.fft.fft2(white) / amplitude).real
    return noise / noise.flatten(2).std(2)[..., None, None]
