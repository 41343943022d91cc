"""Hostile rows on small models: no claim is broken, and each planted bug breaks the claim of its scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from tacit.audit import Finding
from tacit.audit.hostile import audit_scene
from tacit.audit.scenes import SCENES, Row, Scene, linear_loss, scenes
from tacit.audit.shipped import DELTA, one_release
from tacit.errors import ArgumentError
from tacit.raw.footprint import Footprint
from tacit.raw.generators import Generators
from tacit.raw.gradients import base, linear
from tacit.raw.inspector import Inspector
from tacit.support import Block, Support

NAMES = [scene.name for scene in scenes()]
NOISE = one_release(8.0).noise_multiplier


def scene_of(name: str) -> Scene:
    return scenes()[NAMES.index(name)]


def audit(scene: Scene, trials: int = 160, seed: int | None = None) -> Finding:
    torch.manual_seed(1)
    return audit_scene(scene, noise_multiplier=NOISE, delta=DELTA, trials=trials, seed=seed)


@pytest.mark.parametrize("name", NAMES)
def test_no_scene_breaks_its_claim(name: str) -> None:
    found = audit(scene_of(name))
    assert found.holds
    assert found.epsilon_claimed == pytest.approx(8.0, abs=0.05)
    assert (found.kind, found.trials, found.sequential) == ("hostile", 160, True)


def test_an_ordinary_large_row_is_seen_as_well_as_the_claim_allows() -> None:
    found = audit(scene_of("cancelling positions"), trials=1000, seed=3)
    assert 0.55 * found.epsilon_claimed < found.epsilon_lower < found.epsilon_claimed


def squares_in_single_precision(a: Tensor, b: Tensor) -> base.Norms:
    """Ghost norms as they were: what cancels below zero counts as nothing."""
    square = (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(b, b.transpose(1, 2))).sum((1, 2)).clamp(min=0)
    return base.Norms.exact(square.double())


def no_error(self: linear.Linear) -> Tensor:
    return torch.zeros(2, len(self.a), dtype=torch.float64)


def summed_in_single_precision(b: Tensor, a: Tensor, weights: Tensor, block: Block) -> Tensor:
    factors = (b * weights[:, None]).to(a.dtype).t().contiguous(), a
    return torch.sparse.sampled_addmm(linear.pattern(block, a), *factors, beta=0.0).values()


def lose_squares(rows: Tensor) -> Tensor:
    return rows.detach().flatten(1).square().sum(1).double()


@contextmanager
def nothing_keyed(self: Generators, *place: int) -> Iterator[None]:
    yield


PLANTED: list[tuple[str, str, int, Callable[[pytest.MonkeyPatch], object]]] = [
    (
        "ghost norms without their rounding",
        "cancelling positions",
        160,
        lambda patch: patch.setattr(linear, "ghost_norms", squares_in_single_precision),
    ),
    (
        "ghost norms without their rounding, soft",
        "cancelling positions, soft weights",
        160,
        lambda patch: patch.setattr(linear, "ghost_norms", squares_in_single_precision),
    ),
    (
        "a norm of another product than the sum",
        "cancelling positions, single coordinates",
        1000,
        lambda patch: (
            patch.setattr(linear.Linear, "forming_error", no_error),
            patch.setattr(linear, "_sampled_products", summed_in_single_precision),
        ),
    ),
    (
        "squares that vanish",
        "ends of single precision",
        160,
        lambda patch: (
            patch.setattr(linear, "squared_norms", lose_squares),
            patch.setattr(linear, "norms_above", lambda rows, squares=None: lose_squares(rows).sqrt()),
        ),
    ),
    (
        "masks from the public generator",
        "dropout",
        160,
        lambda patch: patch.setattr(Generators, "keyed", nothing_keyed),
    ),
    (
        "rows taken for the examples at their places",
        "sorted by length",
        1000,
        lambda patch: (
            patch.setattr("tacit.raw.probe._Look._escaped", lambda *_: frozenset()),
            patch.setattr(Inspector, "check", lambda *_: None),
            patch.setattr(Inspector, "look_again", lambda *_: None),
        ),
    ),
]


@pytest.mark.parametrize(
    ("name", "trials", "plant"), [case[1:] for case in PLANTED], ids=[case[0] for case in PLANTED]
)
def test_a_planted_bug_breaks_the_claim(
    monkeypatch: pytest.MonkeyPatch, name: str, trials: int, plant: Callable[[pytest.MonkeyPatch], object]
) -> None:
    plant(monkeypatch)
    found = audit(scene_of(name), trials, seed=1)
    assert found.epsilon_lower > found.epsilon_claimed
    assert not found.holds


class Remembering(nn.Module):
    """Keeps the largest value that it has seen, in a buffer that is saved with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 3:  # not for the few rows of a probe
            self.largest.copy_(x.detach().abs().max())
        return self.layer(x)


def remembering() -> Scene:
    torch.manual_seed(0)
    model = Remembering()
    rows = torch.randn(8, 4), torch.randn(8, 2)
    odd: Row = (torch.full((1, 4), 1234.5), torch.randn(1, 2))
    return Scene("a running maximum", model, linear_loss, rows, [odd], Support.all(model))


def test_a_row_that_stays_in_a_buffer_is_found_by_looking_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Footprint, "put_back", lambda *_, **__: None)
    assert not audit(remembering()).holds


def test_what_a_buffer_remembers_is_taken_back() -> None:
    with pytest.warns(UserWarning, match="writes to largest"):
        assert audit(remembering()).holds


def test_the_scenes_are_the_same_each_time_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = scenes(), scenes()
    assert torch.equal(before, torch.get_rng_state())
    assert len(first) == len(SCENES)
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.rows, other.rows, strict=True))
        assert len(one.odd) == len(other.odd)


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(ArgumentError, match="trials"):
        audit(scene_of("dropout"), trials=3)
