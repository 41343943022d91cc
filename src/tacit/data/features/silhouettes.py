"""Figures on black: find them, centre them, set them upright."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_POINTS = 32


def figures_on_black(count: int, size: int, seed: int = 0) -> Tensor:
    """``count`` grey images of shape (1, size, size) with values in 0 .. 1, the same for the same seed.

    Every other image shows one to three bent strokes, the rest a silhouette of a few ellipses and turned rectangles
    around the middle, shaded and striped. Nothing was drawn after any data set.
    """
    generator = torch.Generator().manual_seed(seed)
    halves = []
    for part in torch.split(torch.arange(count), 500):
        strokes = _strokes(len(part), size, generator)
        silhouettes = _silhouettes(len(part), size, generator)
        halves.append(torch.where((part % 2 == 0)[:, None, None], strokes, silhouettes))
    return torch.cat(halves)[:, None]


def _grid(size: int) -> tuple[Tensor, Tensor]:
    at = (torch.arange(size) + 0.5) / size
    rows, columns = torch.meshgrid(at, at, indexing="ij")
    return rows, columns


def _strokes(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Cubic curves between random points of the middle, one to three per image, with soft edges."""
    rows, columns = _grid(size)
    t = torch.linspace(0, 1, _POINTS)
    weights = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    image = torch.zeros(count, size, size)
    for number in range(3):
        corners = 0.15 + 0.7 * torch.rand(count, 2, 4, generator=generator)
        curve = corners @ weights
        away = (rows[None, ..., None] - curve[:, 0, None, None]).square()
        away += (columns[None, ..., None] - curve[:, 1, None, None]).square()
        width = 0.02 + 0.06 * torch.rand(count, 1, 1, generator=generator)
        ink = ((width - away.amin(-1).sqrt()) * size + 0.5).clamp(0, 1)
        drawn = torch.rand(count, 1, 1, generator=generator) < (1.0, 0.6, 0.3)[number]
        image = torch.maximum(image, ink * drawn)
    return image


def _silhouettes(count: int, size: int, generator: torch.Generator) -> Tensor:
    """A union of four shapes with a shade, a slope and stripes of its own."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    rows, columns = _grid(size)
    inside = torch.zeros(count, size, size)
    for number in range(4):
        spread = 0.05 if number == 0 else 0.25
        y = rows - uniform(0.5 - spread, 0.5 + spread)
        x = columns - uniform(0.5 - spread, 0.5 + spread)
        angle = uniform(0, math.pi) * (torch.rand(count, 1, 1, generator=generator) < 0.5)
        along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
        a, b = uniform(0.08, 0.45), uniform(0.08, 0.45)
        ellipse = 1 - ((along / a).square() + (across / b).square()).sqrt()
        rectangle = 1 - torch.maximum((along / a).abs(), (across / b).abs())
        shape = torch.where(torch.rand(count, 1, 1, generator=generator) < 0.5, ellipse, rectangle)
        inside = torch.maximum(inside, (shape * torch.minimum(a, b) * size + 0.5).clamp(0, 1))
    shade = uniform(0.2, 1.0) + uniform(-0.4, 0.4) * (columns - 0.5) + uniform(-0.4, 0.4) * (rows - 0.5)
    turn = uniform(0, math.pi)
    wave = (columns * turn.cos() + rows * turn.sin()) * uniform(4, 60) + uniform(0, 2 * math.pi)
    texture = uniform(0, 0.25) * wave.sin() + uniform(0, 0.1) * torch.randn(
        count, size, size, generator=generator
    )
    return inside * (shade + texture).clamp(0, 1)


_FLAT = 0.01
"""A figure of hardly any height has no slant to speak of."""


def upright(images: Tensor) -> Tensor:
    """Grey images (n, 1, height, width) with each figure's centre of mass in the middle and its slant taken out.

    Brightness counts as mass. The slant is the slope of the line that best tells the column of a pixel from its
    row; rows are shifted against each other until it is zero.
    """
    count, _, height, width = images.shape
    mass = images[:, 0]
    rows = torch.linspace(-1, 1, height).view(1, -1, 1)
    columns = torch.linspace(-1, 1, width).view(1, 1, -1)
    total = mass.sum((1, 2)).clamp(min=1e-6)

    def mean(values: Tensor) -> Tensor:
        return (mass * values).sum((1, 2)) / total

    row, column = mean(rows), mean(columns)
    down, across = rows - row[:, None, None], columns - column[:, None, None]
    slope = mean(down * across) / (mean(down * down) + _FLAT)
    one, zero = torch.ones(count), torch.zeros(count)
    seen_from = torch.stack([one, slope, column, zero, one, row], 1).view(count, 2, 3)
    places = F.affine_grid(seen_from, [count, 1, height, width], align_corners=True)
    return F.grid_sample(images, places, align_corners=True)
