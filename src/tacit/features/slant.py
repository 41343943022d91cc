"""Figures set upright: one fixed step, taken on each image by itself, before any features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
