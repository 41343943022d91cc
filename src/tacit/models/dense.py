"""Models of feature vectors."""

from __future__ import annotations

import math

from torch import nn

from tacit.errors import check_count


def logistic(inputs: int, outputs: int) -> nn.Sequential:
    """One linear layer, starting at zero (softmax regression where there are several outputs)."""
    layer = nn.Linear(check_count("inputs", inputs), check_count("outputs", outputs))
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(inputs: int, outputs: int, *, width: int = 64, depth: int = 1) -> nn.Sequential:
    """``depth`` hidden tanh layers of ``width`` units; bounded activations keep per-example gradients
    small.
    """
    check_count("inputs", inputs)
    check_count("outputs", outputs)
    check_count("width", width)
    check_count("depth", depth)
    layers: list[nn.Module] = [nn.Flatten()]
    for layer in range(depth):
        layers += [nn.Linear(inputs if layer == 0 else width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def numel(shape: tuple[int, ...]) -> int:
    """Count the entries of an array of ``shape``."""
    return math.prod(shape)
