"""The experiment on the network's last convolution: its clipped sums are those of every example's own gradient."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit_papers.images import last_block
from tacit_papers.images.last_block import CLASSES, CLIP, RANK, Course, Frozen, Model

INPUTS, OUTPUTS, PLACES, BESIDE = 18, 6, 4, 5


class Plain(Model):
    """A small convolution with no whitening."""

    def __init__(self, way: str, generator: torch.Generator) -> None:
        self.base, self.conv_bias = torch.randn(OUTPUTS, INPUTS, generator=generator), torch.zeros(OUTPUTS)
        self.way, self.whitening = way, cast(Any, lambda vectors: vectors)
        self.rows = torch.tensor([1, 4]) if way == "random" else torch.arange(OUTPUTS)
        self.up = 0.1 * torch.randn(OUTPUTS, RANK, generator=generator)
        self.down = torch.randn(RANK, INPUTS, generator=generator)
        self.moved = torch.zeros_like(self.base)
        self.head = torch.randn(CLASSES, BESIDE + OUTPUTS * PLACES + 1, generator=generator)


def data(generator: torch.Generator) -> Frozen:
    maps = torch.randn(7, 2, 2, 4, 4, generator=generator)  # an image and its mirror image
    return Frozen(maps, torch.randn(7, BESIDE, generator=generator), torch.randint(CLASSES, (7,)))


@pytest.mark.parametrize("way", ["dense", "random", "lora"])
def test_sums_are_those_of_clipped_gradients_one_example_at_a_time(way: str) -> None:
    generator = torch.Generator().manual_seed(3)
    model, frozen = Plain(way, generator), data(generator)
    course = Course(frozen, frozen, torch.zeros(0), model.whitening, 1.0)
    head, block = course._sums(model, torch.arange(7), 0.5, with_head=True)
    expected = _one_by_one(model, frozen, 0.5)
    assert torch.allclose(head, expected[0], atol=1e-6)
    for found, wanted in zip(block, expected[1:], strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


def _one_by_one(model: Plain, frozen: Frozen, scale: float) -> list[Tensor]:
    parameters = [model.head, *model.parameters()]
    totals = [torch.zeros_like(parameter) for parameter in parameters]
    for place in range(len(frozen.labels)):
        for parameter in parameters:
            parameter.requires_grad_()
        ((patches, beside, labels),) = frozen.chunks(torch.tensor([place]))
        answers = model.features(model.responses(patches), beside) @ model.head.T
        own = list(torch.autograd.grad(F.cross_entropy(answers, labels, reduction="sum"), parameters))
        for parameter in parameters:
            parameter.requires_grad_(False)
        if model.way == "random":
            own[1] = torch.where(torch.isin(torch.arange(OUTPUTS), model.rows)[:, None], own[1], 0.0)
        own = [own[0], *(scale * each for each in own[1:])]
        length = torch.cat([each.flatten() for each in own]).norm()
        for total, each in zip(totals, own, strict=True):
            total += each * min(1.0, CLIP / float(length))
    return totals


def test_the_paragraph_says_what_gains_and_what_does_not() -> None:
    gain = {"mean": 0.02, "error": 0.001}
    rows = [
        {"way": "head", "accuracy": [0.6, 0.7]},
        {"way": "lora", "accuracy": [0.67, 0.67], "gain": gain},
        {"way": "dense", "accuracy": [0.64, 0.66], "gain": {"mean": 0.0, "error": 0.001}},
    ]
    said = last_block.paragraph({"command": "c", "commit": "abc", "rows": rows})
    assert "| the head alone | 65.00 | |" in said
    assert "| also all weights | 65.00 | +0.00 ± 0.20 |" in said
    assert "Clear gains: a correction of rank 4." in said
    assert "Nothing gains clearly." in last_block.paragraph(
        {"command": "c", "commit": "abc", "rows": rows[::2]}
    )
