"""Contrastive learning: the network learns which views show the same image."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.data.features.network import STRIDES, as_input

_VIEW = 32
_CLOSEST, _FARTHEST = 0.35, 0.8
"""Side of what a view shows, as a share of the image's."""
_WEIGHT_DECAY, _MOMENTUM = 1e-4, 0.9
_EPS = 1e-5


@dataclass(frozen=True)
class Pretraining:
    """How the network is trained: ``steps`` of ``images_per_step`` images, of each of which it sees two views."""

    width: int = 32
    steps: int = 3_200
    images_per_step: int = 384
    rate: float = 0.3
    warm_up: int = 100
    temperature: float = 0.2
    seed: int = 0


class Encoder(nn.Module):
    """The network with batch normalisation and a head that both go when it has learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3]
        for place, stride in enumerate(STRIDES):
            widths.append(width if place == 0 else widths[-1] * stride)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            for inputs, outputs, stride in zip(widths[:-1], widths[1:], STRIDES, strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs, eps=_EPS) for outputs in widths[1:])
        last = widths[-1]
        self.head = nn.Sequential(nn.Linear(last, last), nn.ReLU(), nn.Linear(last, 64))

    def forward(self, images: Tensor) -> Tensor:
        """A vector of unit length for each image."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            images = F.relu(norm(convolution(images)))
        return F.normalize(self.head(images.mean((2, 3))).float(), dim=1)

    def folded(self) -> dict[str, Tensor]:
        """Weights and biases of the convolutions, with the normalisation in them."""
        found = {}
        for place, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            now, seen = dict(norm.named_parameters()), dict(norm.named_buffers())
            scale = now["weight"] * (seen["running_var"] + _EPS).rsqrt()
            weight = convolution.get_parameter("weight") * scale[:, None, None, None]
            found[f"{place}.weight"] = weight.detach().contiguous()
            found[f"{place}.bias"] = (now["bias"] - seen["running_mean"] * scale).detach()
        return found


def views(images: Tensor, generator: torch.Generator) -> Tensor:
    """A part of each image, enlarged or made smaller, stretched, mirrored or not, in a light of its own."""
    count = len(images)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    side = _CLOSEST + (_FARTHEST - _CLOSEST) * uniform()
    stretch, turn = torch.exp(0.2 * normal()), torch.where(uniform() < 0.5, -1.0, 1.0)
    places = torch.zeros(count, 2, 3)
    places[:, 0, 0] = (side * stretch).clamp(max=0.9) * turn
    places[:, 1, 1] = (side / stretch).clamp(max=0.9)
    places[:, :, 2] = (1 - side)[:, None] * (2 * uniform(2) - 1)
    grid = F.affine_grid(places, [count, 3, _VIEW, _VIEW], align_corners=False)
    seen = F.grid_sample(images.float() / 255, grid, align_corners=False, padding_mode="reflection")
    mean = seen.mean((1, 2, 3), keepdim=True)
    gain = (1 + 0.35 * normal(1, 1, 1)) * (1 + 0.2 * normal(3, 1, 1))
    light = 0.12 * normal(1, 1, 1) + 0.08 * normal(3, 1, 1)
    seen = mean + (seen - mean) * gain + light
    grey = seen.mean(1, keepdim=True).expand_as(seen)
    return torch.where(uniform(1, 1, 1) < 0.2, grey, seen).clamp(0, 1)


def pretrain(images: Tensor, settings: Pretraining, report: Callable[[int, float], None]) -> Encoder:
    """The network after all steps; ``report`` hears the number of steps so far and the loss of the last one.

    The loss is the cross-entropy of naming the other view of the same image among all views of the step.
    """
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed + 1)
    encoder = Encoder(settings.width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        encoder.parameters(), momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY, nesterov=True
    )
    count = settings.images_per_step
    others = torch.arange(2 * count).roll(count)
    for step in range(settings.steps):
        falling = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * min(1.0, (step + 1) / settings.warm_up) * falling
        chosen = images[torch.randint(len(images), (count,), generator=generator)]
        seen = as_input(torch.cat([views(chosen, generator), views(chosen, generator)]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            vectors = encoder(seen.contiguous(memory_format=torch.channels_last))
        alike = vectors @ vectors.T / settings.temperature
        alike.fill_diagonal_(-math.inf)
        loss = F.cross_entropy(alike, others)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step + 1, float(loss.detach()))
    return encoder
