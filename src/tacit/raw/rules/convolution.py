"""Convolutions in one, two and three dimensions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tacit.raw.rules.registry import register
from tacit.raw.site import Site
from tacit.raw.uses.convolution import Geometry


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, site: Site, x: Tensor) -> Tensor:
    """Every stride, dilation, group count and padding mode; unusual padding is applied to the input first."""
    padding = module.padding
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = (0,) * len(module.kernel_size)
    elif isinstance(padding, str):
        around = module._reversed_padding_repeated_twice
        sides = [tuple(around[2 * i : 2 * i + 2]) for i in reversed(range(len(module.kernel_size)))]
        if all(left == right for left, right in sides):
            padding = tuple(left for left, _ in sides)
        else:
            x = F.pad(x, around)
            padding = (0,) * len(module.kernel_size)
    geometry = Geometry(tuple(module.stride), tuple(padding), tuple(module.dilation), module.groups)
    return site.convolution(x, module.weight, module.bias, geometry)
