"""Without noise every method follows the naive reference, step by step, support and all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from training.naive import NaiveAdam, NaiveSgd, naive_run
from training.small import SEED, STEPS, adam, data, flat, mask, momentum, network, plan, sgd, trainer

CLIP = 1.7
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp-sgd": ("dp-sgd", {}),
    "tp-topk": ("tp-topk", {}),
    "tp-topk, reset": ("tp-topk", {"reset": True}),
    "tp-topk, movement": ("tp-topk", {"score": "movement"}),
    "tp-topk, movement, reset": ("tp-topk", {"score": "movement", "reset": True}),
    "tp-topk, pooled by row": ("tp-topk", {"pooling": "row"}),
    "tp-topk, pooled by column": ("tp-topk", {"pooling": "column", "score": "movement"}),
    "tp-topk, per layer": ("tp-topk", {"per_layer": True}),
    "tp-topk, per layer, small": ("tp-topk", {"per_layer": True, "active_ratio": 0.05}),
    "tp-topk, always active": ("tp-topk", {"always_active": ("*.bias", "6.*")}),
    "tp-topk, two clip norms": ("tp-topk", {"clip_norm": (1.5, 0.2)}),
    "tp-rand": ("tp-rand", {}),
    "tp-rand, reset, always active": ("tp-rand", {"reset": True, "always_active": ("7.*",)}),
    "on-rand": ("on-rand", {}),
    "on-topk": ("on-topk", {}),
    "on-topk, explore": ("on-topk", {"explore": 0.4, "active_ratio": 0.2}),
    "on-topk, per layer": ("on-topk", {"explore": 0.4, "per_layer": True}),
    "rs": ("rs", {}),
    "sparta": ("sparta", {}),
    "sparta, clipped first": ("sparta", {"clip_order": "clip-then-mask"}),
    "sparta, magnitude": ("sparta", {"score": "magnitude", "selection_epochs": 1.5}),
    "sparta, saliency, global": ("sparta", {"score": "saliency", "per_layer": False}),
    "sparta, row norms, head first": (
        "sparta",
        {"score": "row-norms", "head": ["7.*"], "head_epochs": 1, "always_active": ["*.bias", "1.*"]},
    ),
    "sparta, votes": ("sparta", {"score": "votes", "always_active": ["7.*"]}),
    "sparta, one vote, global": ("sparta", {"score": "votes", "votes": 1, "per_layer": False}),
    "sparta, votes for modules": ("sparta", {"score": "votes", "votes": 2, "choose": "modules"}),
    "sparta, a vote for a module": (
        "sparta",
        {"score": "votes", "votes": 1, "choose": "modules", "always_active": ["7.*"]},
    ),
    "sparta, modules by row norms": ("sparta", {"score": "row-norms", "choose": "modules"}),
    "random modules": ("random-rows", {"choose": "modules", "active_ratio": None, "rows": 2}),
    "magnitude modules": ("magnitude-rows", {"choose": "modules", "always_active": ["*.bias"]}),
    "sparta, two rows per layer": ("sparta", {"active_ratio": None, "rows": 2}),
    "random rows": ("random-rows", {"always_active": ["*.bias"]}),
    "magnitude rows": ("magnitude-rows", {"per_layer": False}),
    "only the head": ("only", {"active_ratio": None, "active": ["7.*"]}),
}
RULES: dict[str, tuple[Any, Callable[[], NaiveSgd]]] = {
    "sgd": (sgd, lambda: NaiveSgd(0.5)),
    "momentum": (momentum, lambda: NaiveSgd(0.2, 0.8, 0.05)),
    "adam": (adam, lambda: NaiveAdam(0.02, 0.05)),
}


def compare(method: str, rule: str, *, augment: Any = None, x: Tensor | None = None, **options: Any) -> None:
    name, choices = METHODS[method]
    chosen = plan(name, **{"clip_norm": CLIP, **choices})
    images, targets = data().tensors
    factory, naive = RULES[rule]
    views = 1 if x is None else x.shape[1]
    model = network()
    run = trainer(chosen, model, optimizer=factory, views=views, augment=augment, **options)
    expected = naive_run(chosen, network(), images[:, None] if x is None else x, targets, SEED, naive())
    moved = flat(model)
    for step, (theta, active) in zip(run.steps(), expected, strict=True):
        assert torch.equal(mask(step.released.support), active), step.number
        torch.testing.assert_close(flat(model), theta, rtol=0, atol=1e-6, msg=f"step {step.number}")
        assert torch.equal(flat(model)[active], moved[active]) is not step.phase.updates
        moved = flat(model)
    assert run.done == STEPS


@pytest.mark.parametrize("method", METHODS)
def test_every_method_follows_the_naive_reference(method: str) -> None:
    compare(method, "sgd")


@pytest.mark.parametrize("rule", ["momentum", "adam"])
@pytest.mark.parametrize(
    "method",
    ["tp-topk", "tp-topk, per layer", "on-topk, explore", "on-rand", "rs", "sparta, row norms, head first"],
)
def test_optimizer_state_follows_the_support(method: str, rule: str) -> None:
    compare(method, rule)


@pytest.mark.parametrize("chunk_size", [None, 1, 7])
def test_how_a_batch_is_cut_into_chunks_changes_nothing(chunk_size: int | None) -> None:
    compare("tp-topk", "momentum", chunk_size=chunk_size)


def test_an_example_counts_as_the_mean_of_its_views_before_clipping() -> None:
    images, _ = data().tensors

    def augment(chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = chunk
        x = x.clone()
        x[1::2] = x[1::2].flip(-1)
        return x, y

    compare("tp-topk", "sgd", augment=augment, x=torch.stack([images, images.flip(-1)], 1))


def test_the_clip_norm_of_these_tests_binds_for_some_examples_and_not_for_others() -> None:
    from tacit.losses import cross_entropy
    from tacit.raw.clipping import Clipper
    from tacit.support import Support

    model = network()
    norms = Clipper(model, cross_entropy).norms(data().tensors, Support.all(model))
    assert 0.2 < float((norms > CLIP).double().mean()) < 0.95


@pytest.mark.parametrize(("score", "numbers"), [("absolute", 279), ("row-norms", 46), ("votes", 46)])
def test_scoring_releases_one_noise_per_number_at_the_planned_deviation(score: str, numbers: int) -> None:
    """The selection phase of SPARTA: its noise is the plan's, whatever is summed, and the ledger says how much."""
    chosen = plan("sparta", epsilon=0.05, score=score, selection_epochs=4)
    quiet = plan("sparta", score=score, selection_epochs=4)
    runs = [trainer(planned, network()).steps() for planned in (chosen, quiet)]
    deviation = chosen.phases[0].noise_multiplier * chosen.phases[0].clip_norm / chosen.batch_size
    noise = []
    for noisy, exact in zip(*runs, strict=True):
        if noisy.phase.updates:
            break
        noise.append(
            torch.cat([(v - exact.released.values[n]).flatten() for n, v in noisy.released.values.items()])
        )
        assert noise[-1].numel() == numbers
        assert noisy.released.noise_std == pytest.approx(deviation, rel=1e-3)
    drawn = torch.stack(noise)
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.12)
    assert float(torch.corrcoef(drawn).fill_diagonal_(0).abs().max()) < 5 / numbers**0.5
