"""The audit of the real thing: through clipping, ledger and noise, for every method; planted bugs break the claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.audit import Effort, Finding, audit_phases, audit_plan, audit_release, audit_run
from tacit.audit.mechanism import _follows_releases
from tacit.audit.shipped import BATCH, DELTA, OPTIONS, one_release
from tacit.audit.standin import EXCESS, CanaryData, StandIn, linear_loss
from tacit.errors import ArgumentError
from tacit.plan import (
    All,
    Named,
    Plan,
    Random,
    Soft,
    SupportSource,
    TopK,
    TopRows,
    make_plan,
)
from tacit.plan.methods import METHODS
from tacit.raw.clipping import Clipper
from tacit.raw.sampling import PoissonSampler
from tacit.release.noise import SecureNoise, SeededNoise
from tacit.support import Support

RELEASE = Effort(canaries=4096, releases=32)
SMALL = Effort(canaries=1024, releases=8, runs=1)


def release(seed: int | None = None, epsilon: float = 1.0, effort: Effort = RELEASE) -> Finding:
    return audit_release(one_release(epsilon), delta=DELTA, batch_size=BATCH, effort=effort, seed=seed)


def plan(method: str, **options: Any) -> Plan:
    options = {**OPTIONS.get(method, {"active_ratio": 0.3}), **options}
    return make_plan(
        method, epsilon=8.0, delta=1e-5, examples=1024, batch_size=256, epochs=3, accountant="rdp", **options
    )


def weaken(monkeypatch: pytest.MonkeyPatch, factor: Callable[[], float]) -> None:
    for kind in (SecureNoise, SeededNoise):
        real = kind.add

        def add(self: Any, values: Tensor, scale: float, times: float, real: Any = real) -> None:
            real(self, values, scale * factor(), times)

        monkeypatch.setattr(kind, "add", add)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_release_is_audited_nearly_tightly(seed: int | None) -> None:
    found = release(seed, effort=replace(RELEASE, releases=64))
    assert found.trials == 4096 * 64
    assert 0.8 * found.epsilon_claimed <= found.epsilon_lower <= found.epsilon_claimed
    assert found.holds
    assert found.epsilon_claimed == pytest.approx(1.0, abs=0.005)


def test_a_right_release_is_accused_no_more_often_than_the_confidence_says() -> None:
    """Twenty audits with an error of a quarter each, on the real thing."""
    effort = Effort(canaries=1024, releases=4, confidence=0.75)
    accused = sum(not release(seed, effort=effort).holds for seed in range(20))
    assert accused <= 9  # more than nine out of twenty: with probability 0.014 at an error of a quarter


@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_other_noise(epsilon: float) -> None:
    found = release(3, epsilon)
    assert found.holds
    assert found.epsilon_lower >= 0.5 * epsilon


@pytest.mark.parametrize("seed", [None, 1])
def test_noise_weakened_by_a_third_breaks_the_claim(
    monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    weaken(monkeypatch, lambda: 2 / 3)
    found = release(seed, effort=replace(RELEASE, releases=12))
    assert found.epsilon_lower > found.epsilon_claimed
    assert not found.holds


def test_a_coordinate_in_fifty_without_noise_breaks_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SecureNoise.add

    def add(self: SecureNoise, values: Tensor, scale: float, factor: float) -> None:
        bare = values[::50].clone()
        real(self, values, scale, factor)
        values[::50] = bare * factor

    monkeypatch.setattr(SecureNoise, "add", add)
    assert not release().holds


def test_a_clip_norm_of_twice_what_is_charged_breaks_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Clipper.clipped_sum

    def doubled(self: Clipper, chunks: Any, support: Support, clip_norm: float, **options: Any) -> Any:
        found = real(self, chunks, support, 2 * clip_norm, **options)
        return replace(found, clip_norm=clip_norm, sensitivity=clip_norm)

    monkeypatch.setattr(Clipper, "clipped_sum", doubled)
    assert not release(effort=replace(RELEASE, releases=8)).holds


@pytest.mark.parametrize("method", METHODS)
def test_every_method_holds(method: str) -> None:
    torch.manual_seed(4)  # the weights of the stand-in, by which one method chooses its rows
    chosen = plan(method)
    found = audit_plan(chosen, effort=SMALL, seed=4)
    assert {finding.kind for finding in found} == {"release", "phase", "run"}
    assert all(finding.holds for finding in found)
    run = found[-1]
    assert run.epsilon_claimed <= 8.0
    assert run.epsilon_lower > 0.02
    assert run.sequential == (method not in ("tp-topk", "on-topk", "sparta", "counted-rows", "adafest"))


def test_soft_weights_hold_and_are_no_reason_to_take_trials_for_fresh() -> None:
    chosen = plan("tp-topk", active_ratio="soft")
    found = audit_plan(chosen, effort=SMALL, seed=4)
    assert all(finding.holds for finding in found)
    assert [finding.sequential for finding in found] == [True, True, True, False]


@pytest.mark.parametrize(
    ("source", "first", "later"),
    [
        (All(), True, True),
        (Named(("*",)), True, True),
        (Random(0.5), True, True),
        (TopRows(0.5, score="random"), True, True),
        (TopRows(0.5, score="weights"), True, False),
        (TopRows(0.5, score="absolute"), False, False),
        (TopK(0.5), False, False),
        (TopK("auto", "movement"), False, False),
        (Soft(), False, False),
    ],
    ids=str,
)
def test_only_supports_that_no_release_reaches_leave_a_run_with_fresh_coins(
    source: SupportSource, first: bool, later: bool
) -> None:
    """Weights, too, are made from releases once a phase has moved them."""
    usual = plan("dp-sgd")
    start = replace(usual.phases[0], name="start")
    for phases, fresh in (([source], first), ([All(), source], later)):
        made = tuple(replace(start, name=str(i), support=s) for i, s in enumerate(phases))
        assert _follows_releases(replace(usual, phases=made)) is not fresh


def test_releases_of_row_norms_are_audited_with_one_canary_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan("sparta", score="row-norms", rows=40, active_ratio=None)
    effort = replace(SMALL, runs=16)
    found = audit_phases(chosen, effort=effort, seed=5)
    assert found[0].holds
    assert found[0].trials == 16 * 32
    weaken(monkeypatch, lambda: 0.1)
    assert not audit_phases(chosen, effort=effort, seed=5)[0].holds


def test_releases_of_votes_are_audited_as_the_gradients_whose_norm_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = plan("sparta", score="votes", rows=40, active_ratio=None)
    assert audit_phases(chosen, effort=SMALL, seed=5)[0].holds
    weaken(monkeypatch, lambda: 0.1)
    assert not audit_phases(chosen, effort=SMALL, seed=5)[0].holds


def test_the_phases_of_two_noise_levels_are_told_apart() -> None:
    found = audit_phases(plan("tp-topk", active_ratio=0.3), effort=SMALL, seed=5)
    assert [finding.name for finding in found] == ["warm-up", "sparse"]
    assert found[0].epsilon_claimed < found[1].epsilon_claimed
    assert found[0].trials == 1024
    assert found[1].trials == 307


def test_weak_noise_in_training_breaks_phases_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    weaken(monkeypatch, lambda: 0.5)
    effort = replace(SMALL, runs=2)
    assert not audit_phases(plan("dp-sgd"), effort=effort, seed=6)[0].holds
    assert not audit_run(plan("dp-sgd"), effort=effort, seed=6).holds


def test_sampling_more_than_was_accounted_breaks_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PoissonSampler.draw

    def draw(self: PoissonSampler, step: int) -> Any:
        self.rate = 0.75
        return real(self, step)

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    assert not audit_phases(plan("dp-sgd"), effort=replace(SMALL, runs=2), seed=7)[0].holds


def test_a_canary_enters_the_sum_with_the_clip_norm_alone_on_its_coordinate() -> None:
    standin = StandIn(50)
    canaries = torch.tensor([0, 7, 49])
    clipper = Clipper(standin.model, linear_loss)
    found = clipper.clipped_sum([standin.batch(canaries, EXCESS * 0.5)], Support.all(standin.model), 0.5)
    values = found.values["weight"].flatten()[:50]
    expected = torch.zeros(50)
    expected[canaries] = 0.5
    torch.testing.assert_close(values.to(expected.dtype), expected, rtol=1e-4, atol=0)


def test_who_is_not_there_has_no_gradient() -> None:
    standin = StandIn(4)
    data = CanaryData(standin, 10, 5.0)
    data.present[2] = True
    batch = data.collate([0, 2, 3, 9])
    assert linear_loss(standin.model, batch).ne(0).tolist() == [False, True, False, False]


def test_plans_without_noise_are_refused() -> None:
    chosen = make_plan("dp-sgd", epsilon=math.inf, delta=1e-5, examples=1024, batch_size=256, epochs=1)
    with pytest.raises(ArgumentError, match="nothing to audit"):
        audit_plan(chosen, effort=SMALL)


def test_parameters_named_in_a_support_are_not_asked_of_the_stand_in() -> None:
    chosen = plan("tp-rand", always_active=("head.*",))
    assert audit_run(chosen, effort=SMALL, seed=1).holds


@pytest.mark.parametrize("bad", [{"canaries": 3}, {"releases": 0}, {"runs": 0}, {"confidence": 1.0}])
def test_impossible_efforts_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Effort(**bad)


def of_units() -> Plan:
    return make_plan(
        "dp-sgd", epsilon=8.0, delta=1e-5, units=1024, batch_size=256, epochs=3, accountant="rdp"
    )


def test_a_run_of_units_is_audited_with_canaries_of_several_examples() -> None:
    assert audit_run(of_units(), effort=SMALL, seed=3).holds


def test_units_that_are_clipped_example_by_example_break_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Clipper._arranged

    def row_by_row(self: Clipper, chunk: Any) -> Any:
        return real(self, getattr(chunk, "batch", chunk))

    monkeypatch.setattr(Clipper, "_arranged", row_by_row)
    assert not audit_run(of_units(), effort=SMALL, seed=3).holds
