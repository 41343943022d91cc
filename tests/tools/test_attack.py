"""A short form of ``make attack``, and planted bugs that the attacker must notice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tools.attack import crowds
from tools.attack.end_to_end import detect, lower_bound
from tools.attack.jobs import Job, all_jobs, run, violations
from tools.attack.measuring import Subject, Tacit, Values, distance
from tools.attack.page import page
from tools.attack.search import search
from tools.attack.settings import SUPPORTS, Setting
from tools.attack.targets import BY_NAME, TARGETS, Target, model_of

from tacit.raw.clipping import Clipper
from tacit.raw.inspector import Inspections
from tacit.raw.units import UnitBatch
from tacit.support import Support

SMALL = [
    ("Linear 24→16", "all"),
    ("Linear 24→16", "dense"),
    ("Linear 24→16", "sparse"),
    ("Linear 64→64, 8 positions", "all"),
    ("Linear 64→64, 8 positions", "soft 1"),
    ("Linear 16→16, 64 positions", "rows"),
    ("Conv1d 6→8", "all"),
    ("Conv2d 1×1 64→64", "all"),
    ("Conv2d 1×1 64→64", "soft 0"),
    ("Conv2d grouped", "dense"),
    ("Conv2d depthwise", "sparse"),
    ("Embedding, repeated tokens", "all"),
    ("GroupNorm", "all"),
    ("GRU, both directions", "soft 1"),
    ("tied Embedding and Linear", "soft 1"),
    ("bare parameters (torch.func)", "all"),
]


@pytest.mark.parametrize(("name", "support"), SMALL)
def test_no_known_attack_at_a_layer_moves_a_sum_by_more_than_its_sensitivity(name: str, support: str) -> None:
    target = BY_NAME[name]
    worst = search(Tacit(target), target, support, seed=1, evaluations=45)
    assert worst.ratio <= 1, (worst.best.attack, worst.best.setting) if worst.best else None


@pytest.mark.parametrize(
    ("name", "support", "evaluations"),
    [
        ("Linear 512→512, 128 positions", "all", 6),
        ("Conv2d 128→128, 8×8", "all", 8),
        ("Linear, mean over time, ReLU, Linear", "all", 25),
        ("Linear 256→256, 4 positions", "dense", 30),
    ],
)
def test_no_known_attack_on_a_wide_layer_does_so(name: str, support: str, evaluations: int) -> None:
    target = BY_NAME[name]
    worst = search(Tacit(target), target, support, seed=1, evaluations=evaluations)
    assert worst.ratio <= 1, (worst.best.attack, worst.best.setting) if worst.best else None


def test_a_long_sum_of_aligned_examples_is_rounded_within_its_sensitivity() -> None:
    for crowd in crowds.aligned(seed=1, sizes=(4096, 65_536), tries=8):
        assert crowd.ratio <= 1, crowd


def test_companions_that_cancel_do_not_add_to_what_one_example_more_moves() -> None:
    for crowd in crowds.cancelling(seed=1, sizes=(63,)):
        assert crowd.ratio <= 1, crowd


def test_final_weights_of_a_secure_run_do_not_give_the_odd_row_away() -> None:
    found = detect(seed=1, runs=8)
    assert not found.refused
    assert found.ratio <= 1
    assert found.seen - found.false_alarms < found.runs


# Planted bugs -----------------------------------------------------------------------------------------------------


def _units(chunks: list[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and output gradients of one unit after the other: the positions of its rows side by side."""
    for chunk in chunks:
        inputs, outputs = chunk.batch if isinstance(chunk, UnitBatch) else chunk
        owners = list(chunk.ids) if isinstance(chunk, UnitBatch) else list(range(len(inputs)))
        for owner in dict.fromkeys(owners):
            own = [place for place, other in enumerate(owners) if other == owner]
            a, b = (
                (part if part.dim() == 3 else part[:, None])[own].flatten(0, 1)[None]
                for part in (inputs, outputs)
            )
            yield a, b / len(own)


class _Planted:
    """A sum with a bug, for one target, from layer inputs and output gradients as the row gives them."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def sum(self, chunks: list[Any], setting: Setting) -> tuple[Values, float]:
        total = torch.zeros(())
        for a, b in _units(chunks):
            weight = (setting.clip_norm / self.norms(a, b)).clamp(max=1)
            total = total + weight * (b[0].t() @ a[0])
        return {"weight": total}, setting.clip_norm * (1 + 1e-4)

    def norms(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class _Ghost(_Planted):
    """Norms from Gram matrices, clamped at zero."""

    def norms(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp(min=0).sqrt()


class _Squares(_Planted):
    """Norms of one position from products of squared norms."""

    def norms(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.square().sum((1, 2)) * b.square().sum((1, 2))).sqrt()


class _Unguarded(_Planted):
    """Good norms, but a row that is not finite is not left out."""

    def norms(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nto,nti->noi", b.double(), a.double()).flatten(1).norm(dim=1).to(a.dtype)


class _LayerByLayer:
    """Tacit, but every parameter is clipped without regard to the others."""

    def __init__(self, target: Target) -> None:
        self.model = model_of(target, torch.float32)
        self.clipper = Clipper(self.model, target.loss, inspections=Inspections(0))
        self.supports = [Support.matching(self.model, [name]) for name, _ in self.model.named_parameters()]

    def sum(self, chunks: list[Any], setting: Setting) -> tuple[Values, float]:
        chunks = [
            UnitBatch((chunk.batch[0].float(), chunk.batch[1]), chunk.ids)
            if isinstance(chunk, UnitBatch)
            else (chunk[0].float(), chunk[1])
            for chunk in chunks
        ]
        values: dict[str, torch.Tensor] = {}
        for support in self.supports:
            clipped = self.clipper.clipped_sum(chunks, support, setting.clip_norm)
            values |= clipped.values
        return values, clipped.sensitivity


@pytest.mark.parametrize(
    ("bug", "name", "least", "evaluations"),
    [
        (_Ghost, "Linear 64→64, 8 positions", 10.0, 20),
        (_Squares, "Linear 24→16", 10.0, 40),
        (_Unguarded, "Linear 24→16", math.inf, 150),
        (_LayerByLayer, "MLP, cross-entropy", 1.2, 20),
    ],
)
def test_the_attacker_notices_a_planted_bug(
    bug: type[Any], name: str, least: float, evaluations: int
) -> None:
    subject: Subject = bug(BY_NAME[name])
    assert search(subject, BY_NAME[name], "all", seed=1, evaluations=evaluations).ratio >= least


def test_a_sound_sum_passes() -> None:
    class Sound:
        def sum(self, chunks: list[Any], setting: Setting) -> tuple[Values, float]:
            total = torch.zeros(64, 64, dtype=torch.float64)
            for inputs, outputs in _units(chunks):
                gradient = outputs[0].double().t() @ inputs[0].double()
                if gradient.norm().isfinite():
                    total += gradient * min(1.0, setting.clip_norm / max(float(gradient.norm()), 1e-300))
            return {"weight": total}, setting.clip_norm * (1 + 1e-4)

    target = BY_NAME["Linear 64→64, 8 positions"]
    assert search(Sound(), target, "all", seed=1, evaluations=60).ratio <= 1


# The tool ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_finds_the_same() -> None:
    target = BY_NAME["Linear 8→8, 6 positions"]
    first, second = (search(Tacit(target), target, "rows", seed=3, evaluations=45) for _ in range(2))
    assert first.ratio == pytest.approx(second.ratio, rel=1e-8)
    assert list(first.by_setting) == list(second.by_setting)


def test_every_layer_meets_every_support() -> None:
    jobs = all_jobs()
    assert len(set(jobs)) == len(jobs)
    for target in TARGETS:
        assert {job.variant for job in jobs if (job.kind, job.target) == ("alone", target.name)} == set(
            SUPPORTS
        )


def test_a_distance_is_exact_where_double_precision_is_not() -> None:
    more = {"w": torch.tensor([1.0, 2.0**60], dtype=torch.float64)}
    less = {"w": torch.tensor([0.0, 2.0**60], dtype=torch.float64)}
    assert distance(more, less) == 1
    assert distance({"w": torch.tensor([1e300, 1e300], dtype=torch.float64)}, {}) == pytest.approx(
        2**0.5 * 1e300
    )
    assert distance({"w": torch.tensor([math.nan])}, {}) == math.inf


def test_detection_in_every_run_proves_an_epsilon_and_guessing_proves_none() -> None:
    assert lower_bound(200, 0, 200) == pytest.approx(3.25, abs=0.01)
    assert lower_bound(100, 100, 200) == 0
    assert lower_bound(0, 0, 200) == 0


def test_the_page_shows_what_broke() -> None:
    found = run(Job("alone", "Linear 8→8, 6 positions", "all"), 1, None, 5)
    found += run(Job("large crowd", variant="kink"), 1, None, None)
    facts = {"seed": 1, "minutes": 0.1, "torch": "2", "machine": "x"}
    assert not violations(found[:1])
    assert "No attack moved a sum" in page(found[:1], facts)
    found[0]["ratio"] = 27_960.0
    assert "**27960**" in page(found, facts)
    assert "broke the bound" in page(found, facts)
