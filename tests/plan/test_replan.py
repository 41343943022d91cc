"""After a loss the promise still holds; without one nothing changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from tacit.errors import LedgerError
from tacit.plan import Plan, Remaining, Spend, epsilon_of, make_plan, replan


@dataclass(frozen=True)
class Paid:
    phase: str
    sampling_rate: float
    noise_multiplier: float


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        "tp-topk", epsilon=2.0, delta=1e-5, examples=2000, batch_size=100, epochs=10, active_ratio=0.3
    )


def pay(plan: Plan, steps: range, remaining: Remaining | None = None) -> list[Paid]:
    phases = plan.phases if remaining is None else remaining.phases
    located = [phases[plan.locate(step)[0]] for step in steps]
    return [Paid(phase.name, phase.sampling_rate, phase.noise_multiplier) for phase in located]


def total(plan: Plan, charges: list[Paid]) -> float:
    return epsilon_of(
        [Spend(charge.sampling_rate, charge.noise_multiplier, 1) for charge in charges], plan.delta
    )


@pytest.mark.parametrize("kept", [0, 1, 60, 61, 150, 200])
def test_without_a_loss_the_noise_is_exactly_the_planned_one(plan: Plan, kept: int) -> None:
    remaining = replan(plan, pay(plan, range(kept)), kept)
    assert remaining.phases == plan.phases
    assert (remaining.factor, remaining.lost) == (1.0, 0)
    assert remaining.epsilon == plan.spent()


@pytest.mark.parametrize(("kept", "lost"), [(0, 10), (40, 15), (60, 20), (120, 40)])
def test_lost_releases_are_paid_by_more_noise_in_the_rest(plan: Plan, kept: int, lost: int) -> None:
    charges = pay(plan, range(kept + lost))
    remaining = replan(plan, charges, kept)
    whole_run = charges + pay(plan, range(kept, plan.steps), remaining)
    assert len(whole_run) == plan.steps + lost
    assert total(plan, whole_run) <= plan.epsilon
    assert total(plan, whole_run) >= 0.99 * plan.epsilon
    assert remaining.epsilon == pytest.approx(total(plan, whole_run))
    assert remaining.lost == lost
    assert remaining.factor > 1
    # Going on with the planned noise would break the promise: the loss is not free.
    assert total(plan, charges + pay(plan, range(kept, plan.steps))) > plan.epsilon


def test_finished_phases_keep_their_noise(plan: Plan) -> None:
    remaining = replan(plan, pay(plan, range(110)), 70)
    assert remaining.phases[0] == plan.phases[0]
    assert remaining.phases[1].noise_multiplier == plan.phases[1].noise_multiplier * remaining.factor


def test_many_crashes_never_exceed_the_promise(plan: Plan) -> None:
    charges: list[Paid] = []
    kept = 0
    remaining = replan(plan, charges, kept)
    for _ in range(6):
        charges += pay(plan, range(kept, min(kept + 45, plan.steps)), remaining)
        kept = min(kept + 28, plan.steps)
        remaining = replan(plan, charges, kept)
        assert remaining.epsilon <= plan.epsilon
    charges += pay(plan, range(kept, plan.steps), remaining)
    assert total(plan, charges) <= plan.epsilon


def test_a_clean_stop_after_a_loss_does_not_change_the_noise_again(plan: Plan) -> None:
    charges = pay(plan, range(90))
    first = replan(plan, charges, 80)
    charges += pay(plan, range(80, 130), first)
    second = replan(plan, charges, 130)
    assert second.phases[1].noise_multiplier == first.phases[1].noise_multiplier
    assert second.lost == 10


def test_a_run_that_has_nothing_left_is_only_checked(plan: Plan) -> None:
    charges = pay(plan, range(plan.steps))
    assert replan(plan, charges, plan.steps).epsilon <= plan.epsilon
    with pytest.raises(LedgerError, match="above the promised"):
        replan(plan, charges + charges[-30:], plan.steps)


def test_a_ledger_that_spent_everything_allows_no_further_step(plan: Plan) -> None:
    with pytest.raises(LedgerError, match="no further step can be taken"):
        replan(plan, pay(plan, range(plan.steps)) * 2, 10)


def test_a_ledger_that_does_not_fit_is_refused(plan: Plan) -> None:
    with pytest.raises(LedgerError, match="only 3 charges"):
        replan(plan, pay(plan, range(3)), 4)
    with pytest.raises(LedgerError, match="more than the 200"):
        replan(plan, pay(plan, range(3)), 201)
    with pytest.raises(LedgerError, match="'cool-down' that the plan does not have"):
        replan(plan, [Paid("cool-down", 0.05, 1.0)], 1)


def test_a_ledger_with_less_noise_than_planned_is_not_mistaken_for_a_clean_one(plan: Plan) -> None:
    charges = [
        Paid(charge.phase, charge.sampling_rate, 0.8 * charge.noise_multiplier)
        for charge in pay(plan, range(80))
    ]
    remaining = replan(plan, charges, 80)
    assert remaining.factor > 1
    assert total(plan, charges + pay(plan, range(80, plan.steps), remaining)) <= plan.epsilon


def test_a_run_without_noise_goes_on_without_noise() -> None:
    silent = make_plan("dp-sgd", epsilon=math.inf, delta=1e-5, examples=2000, batch_size=100, epochs=2)
    remaining = replan(silent, pay(silent, range(10)), 5)
    assert remaining.phases == silent.phases


def test_a_run_that_loses_everything_again_and_again_can_still_go_on(plan: Plan) -> None:
    everything = range(plan.steps)
    charges = pay(plan, everything)
    for _ in range(3):
        remaining = replan(plan, charges[:-1], 0)
        charges = charges[:-1] + pay(plan, everything, remaining)
        assert total(plan, charges) <= plan.epsilon
