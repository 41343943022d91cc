"""Automatic and per-layer clipping: exact against brute force, and within the clip norm for every example."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import assert_close, per_example_gradients
from tacit import PrivateStep, Support
from tacit.errors import ArgumentError
from tacit.losses import cross_entropy
from tacit.raw.clipping import NEAR_ZERO, Clipper
from training.small import BATCH, data, network, plan, sgd, trainer


def _batch(rows: int = 6) -> tuple[Tensor, Tensor]:
    x, y = data()[:rows]
    return x * torch.logspace(-6, 3, rows, dtype=x.dtype).view(-1, 1, 1, 1), y


def _supports(model: nn.Module) -> list[Support]:
    kernel, last = "3.weight", "6.weight"
    return [
        Support.all(model),
        Support.of_coordinates(model, {kernel: torch.arange(0, 60, 7), last: torch.arange(5)}),
    ]


def _norms(gradients: list[Tensor]) -> Tensor:
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()


def _expected(
    model: nn.Module, batch: Any, support: Support, clip_norm: float, clipping: str
) -> dict[str, Tensor]:
    found = per_example_gradients(model, cross_entropy, batch)
    masked = {name: g * support[name].mask().to(g.dtype) for name, g in found.items() if support[name].size}
    groups: dict[str, list[str]] = {}
    for name in masked:
        groups.setdefault(name.split(".")[0] if clipping == "per-layer" else "", []).append(name)
    total = {}
    for names in groups.values():
        norms = _norms([masked[name] for name in names])
        share = clip_norm / math.sqrt(len(groups))
        weights = share / (norms + NEAR_ZERO) if clipping == "automatic" else (share / norms).clamp(max=1)
        for name in names:
            total[name] = support[name].gather(torch.einsum("b,b...->...", weights, masked[name]))
    return total


@pytest.mark.parametrize("clipping", ["flat", "automatic", "per-layer"])
@pytest.mark.parametrize("place", [0, 1])
def test_sums_are_those_of_brute_force(clipping: Any, place: int) -> None:
    model = network()
    support = _supports(model)[place]
    clipper = Clipper(model, cross_entropy, clipping=clipping)
    batch = _batch()
    found = clipper.clipped_sum([batch], support, 0.3).values
    assert_close(found, _expected(model, batch, support, 0.3, clipping), 1e-10)


@pytest.mark.parametrize("clipping", ["automatic", "per-layer"])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e8])
def test_one_example_adds_at_most_the_clip_norm(clipping: Any, scale: float) -> None:
    model = network().float()
    clipper = Clipper(model, cross_entropy, clipping=clipping)
    support = Support.all(model)
    x, y = data()[:4]
    for place in range(4):
        one = (scale * x[place : place + 1].float(), y[place : place + 1])
        clipped = clipper.clipped_sum([one], support, 0.7)
        length = sum(float(v.double().square().sum()) for v in clipped.values.values()) ** 0.5
        assert length <= clipped.sensitivity
        assert clipped.sensitivity <= 0.7 * (1 + 2**-8)


def test_the_share_of_a_layer_does_not_depend_on_what_an_example_reaches() -> None:
    """A layer that no example of a chunk uses has its share all the same: another chunk's may use it."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x)

    model = Sometimes().double()
    clipper = Clipper(model, lambda m, b: 1e3 * m(b[0]).sum(1), clipping="per-layer")
    support = Support({**Support.matching(model, ["one.weight", "two.weight"])})
    values = clipper.clipped_sum([(torch.ones(1, 3, dtype=torch.float64),)], support, 1.0).values
    assert float(values["one.weight"].norm()) == pytest.approx(1 / math.sqrt(2), rel=1e-9)
    assert float(values["two.weight"].norm()) == 0


@pytest.mark.parametrize("clipping", ["automatic", "per-layer"])
def test_trainer_and_step_take_the_option(clipping: Any) -> None:
    run = trainer(plan("tp-topk"), clipping=clipping)
    assert run.fit(progress=False).finished
    model = network()
    step = PrivateStep(
        model,
        cross_entropy,
        support=Support.all(model),
        clip_norm=0.3,
        noise_multiplier=0.0,
        batch_size=BATCH,
        optimizer=sgd,
        clipping=clipping,
    )
    batch = _batch()
    expected = _expected(model, batch, step.support, 0.3, clipping)
    released = step.step(batch).values
    assert_close(released, {name: value / BATCH for name, value in expected.items()}, 1e-10)


def test_a_way_to_clip_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError, match='"flat", "automatic" or "per-layer", not \'adaptive\''):
        trainer(plan("dp-sgd"), clipping="adaptive")
