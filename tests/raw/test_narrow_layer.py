"""A layer of many inputs and few outputs is worked on in several pieces, by examples and by rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.raw.clipping import Clipper
from tacit.raw.gradients import linear
from tacit.support import Support
from tacit.support.support import trainable_parameters


@pytest.mark.parametrize("tile", [64, 1 << 9, 1 << 19])
@pytest.mark.parametrize("ratio", [0.05, 0.4, 0.9])
def test_norms_and_sums_of_masked_gradients_equal_brute_force(
    monkeypatch: pytest.MonkeyPatch, tile: int, ratio: float
) -> None:
    monkeypatch.setattr(linear, "TILE", tile)
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(40, 7).double()
    x = torch.randn(33, 40, generator=generator, dtype=torch.float64)
    y = torch.randint(7, (33,), generator=generator)
    masks = {
        name: torch.rand(p.shape, generator=generator) < ratio
        for name, p in trainable_parameters(model).items()
    }
    places = {name: mask.flatten().nonzero().flatten() for name, mask in masks.items()}
    support = Support.of_coordinates(model, places)

    def loss(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1], reduction="none")

    error = model(x).softmax(1) - nn.functional.one_hot(y, 7)
    weight = (error[:, :, None] * x[:, None]) * masks["weight"]
    bias = error * masks["bias"]
    expected = (weight.flatten(1).square().sum(1) + bias.square().sum(1)).sqrt().detach()
    clipper = Clipper(model, loss)
    torch.testing.assert_close(clipper.norms((x, y), support), expected)
    clip = float(expected.median())
    factor = (clip / expected).clamp(max=1)
    found = clipper.clipped_sum([(x, y)], support, clip).values["weight"]
    total = (weight * factor[:, None, None]).sum(0).detach()
    torch.testing.assert_close(found.flatten(), total[masks["weight"]])
