"""After a loss the promise still holds, whoever chose the moment of the crash; without one nothing changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from tacit.errors import LedgerError
from tacit.plan import Plan, Spend, epsilon_of, make_plan, steps_left
from tacit.runs.recounting import _Direction

Floats = npt.NDArray[np.float64]


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


def pay(plan: Plan, releases: range, kept: int = 0, noise: float = 1.0) -> list[Paid]:
    """Releases as a trainer makes them: noise by their place, phase by the step that they serve."""
    located = [plan.phases[plan.locate(release - releases.start + kept)[0]] for release in releases]
    return [
        Paid(phase.name, phase.sampling_rate, noise * plan.noise_at(release))
        for release, phase in zip(releases, located, strict=True)
    ]


def total(plan: Plan, charges: list[Paid]) -> float:
    return epsilon_of(
        [Spend(charge.sampling_rate, charge.noise_multiplier, 1) for charge in charges], plan.delta
    )


@pytest.mark.parametrize("kept", [0, 1, 60, 61, 150, 200])
def test_without_a_loss_all_planned_steps_are_left(plan: Plan, kept: int) -> None:
    assert steps_left(plan, pay(plan, range(kept)), kept) == plan.steps - kept


@pytest.mark.parametrize(("kept", "lost"), [(0, 10), (40, 15), (60, 20), (120, 40), (199, 1), (0, 200)])
def test_lost_releases_are_not_made_up_for(plan: Plan, kept: int, lost: int) -> None:
    assert steps_left(plan, pay(plan, range(kept + lost)), kept) == plan.steps - kept - lost


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=6))
def test_however_often_a_run_crashes_it_makes_as_many_releases_as_planned(
    plan: Plan, crashes: list[tuple[int, int]]
) -> None:
    charges: list[Paid] = []
    kept = 0
    for taken, lost in crashes:
        taken = min(taken, steps_left(plan, charges, kept))
        charges += pay(plan, range(len(charges), len(charges) + taken), kept)
        kept += taken - min(taken, lost)
        assert steps_left(plan, charges, kept) == plan.steps - len(charges)


# Where noise that is chosen on the way goes wrong ----------------------------------------------------------------

_WIDTH, _HALF = 4e-3, 2**13
_LOSSES = np.arange(-_HALF, _HALF + 1) * _WIDTH


def losses(rate: float, noise: float, steps: int) -> Floats:
    """The distribution of the privacy loss of so many steps, on a grid, for removing an example."""
    edges = (np.arange(-_HALF, _HALF + 2) - 0.5) * _WIDTH
    cumulative = _Direction(rate, noise, removing=True).sides(edges)[0]
    cumulative[[0, -1]] = 0.0, 1.0
    return power(np.diff(cumulative), steps)


def power(one: Floats, steps: int) -> Floats:
    size = 8 * _HALF
    spectrum = np.fft.rfft(np.roll(np.pad(one, (0, size - one.size)), -_HALF)) ** steps
    return np.roll(np.fft.irfft(spectrum, size), _HALF)[: one.size]


def sum_of(first: Floats, second: Floats) -> Floats:
    size = 8 * _HALF
    spectra = [np.fft.rfft(np.roll(np.pad(part, (0, size - part.size)), -_HALF)) for part in (first, second)]
    return np.roll(np.fft.irfft(spectra[0] * spectra[1], size), _HALF)[: first.size]


def deltas(distribution: Floats, epsilons: Floats) -> Floats:
    """delta at each epsilon: the expectation of (1 - exp(epsilon - loss)) where it is positive."""
    above = np.append(np.cumsum(distribution[::-1])[::-1], 0.0)
    scaled = np.append(np.cumsum((distribution * np.exp(-_LOSSES))[::-1])[::-1], 0.0)
    place = np.searchsorted(_LOSSES, epsilons, side="right")
    return np.asarray(np.maximum(0.0, above[place] - np.exp(np.clip(epsilons, -60, 60)) * scaled[place]))


def delta(distribution: Floats, epsilon: float) -> float:
    return float(deltas(distribution, np.array([epsilon]))[0])


def with_a_chosen_crash(after_crash: Callable[[float], Floats]) -> float:
    """The true delta over the planned one, if somebody looks at five of ten releases and then crashes the run or not.

    ``after_crash`` gives the losses of what follows a crash that loses all five, at the promised epsilon. The one who
    chooses knows the privacy loss so far, which is all that matters, and does what reveals more: that is what the
    larger of the two deltas at each loss says. It is exact: for every value of the loss so far the rest is one fixed
    composition.
    """
    planned = losses(0.1, 1.0, 10)
    epsilon = brentq(lambda epsilon: delta(planned, epsilon) - 1e-5, 0, 10, xtol=1e-12)
    seen = losses(0.1, 1.0, 5)
    goes_on = deltas(losses(0.1, 1.0, 5), epsilon - _LOSSES)
    crashes = deltas(after_crash(epsilon), epsilon - _LOSSES)
    return float(seen @ np.maximum(goes_on, crashes)) / 1e-5


def ten_more_with_noise_to_fit(epsilon: float) -> Floats:
    """What version 0.1 did: all ten steps, with the noise that makes the whole look as if it cost what was promised."""
    seen = losses(0.1, 1.0, 5)
    noise = brentq(lambda noise: delta(sum_of(seen, losses(0.1, noise, 10)), epsilon) - 1e-5, 1.0, 2.0)
    assert noise > 1.1
    return losses(0.1, noise, 10)


def test_noise_fitted_after_a_crash_breaks_the_promise_if_the_crash_was_chosen() -> None:
    assert with_a_chosen_crash(ten_more_with_noise_to_fit) > 1.10


def test_noise_by_place_keeps_the_promise_even_if_the_crash_was_chosen() -> None:
    plan = make_plan("dp-sgd", epsilon=2.9, delta=1e-5, examples=100, batch_size=10, epochs=1)
    assert plan.steps == 10
    left = steps_left(plan, pay(plan, range(5)), kept=0)
    assert with_a_chosen_crash(lambda _: losses(0.1, 1.0, left)) == pytest.approx(1.0, abs=1e-6)


# Ledgers that do not fit -----------------------------------------------------------------------------------------


def test_a_run_that_has_nothing_left_is_only_checked(plan: Plan) -> None:
    charges = pay(plan, range(plan.steps))
    assert steps_left(plan, charges, plan.steps) == 0
    with pytest.raises(LedgerError, match="above the promised"):
        steps_left(plan, charges + charges[-30:], plan.steps)


def test_a_ledger_that_spent_everything_allows_no_further_step(plan: Plan) -> None:
    with pytest.raises(LedgerError, match="no further step can be taken"):
        steps_left(plan, pay(plan, range(plan.steps)) * 2, 10)


def test_a_ledger_that_does_not_fit_is_refused(plan: Plan) -> None:
    with pytest.raises(LedgerError, match="only 3 charges"):
        steps_left(plan, pay(plan, range(3)), 4)
    with pytest.raises(LedgerError, match="more than the 200"):
        steps_left(plan, pay(plan, range(3)), 201)
    with pytest.raises(LedgerError, match="'cool-down' that the plan does not have"):
        steps_left(plan, [Paid("cool-down", 0.05, 1.0)], 1)


def test_a_ledger_with_less_noise_than_planned_leaves_fewer_steps(plan: Plan) -> None:
    charges = pay(plan, range(80), noise=0.9)
    left = steps_left(plan, charges, 80)
    assert 0 < left < 120
    assert total(plan, charges + pay(plan, range(80, 80 + left))) <= plan.epsilon
    assert total(plan, charges + pay(plan, range(80, 81 + left))) > plan.epsilon


def test_a_ledger_that_version_0_1_gave_new_noise_goes_on_within_the_promise(plan: Plan) -> None:
    """Ninety releases as planned, then steps 70 and on with noise fitted to a longer run."""
    charges = pay(plan, range(90)) + [
        Paid("sparse", 0.05, 1.09 * plan.phases[1].noise_multiplier) for _ in range(115)
    ]
    assert steps_left(plan, charges[:150], 130) == 50
    assert steps_left(plan, charges, 185) == 0


def test_a_run_without_noise_goes_on_without_noise() -> None:
    silent = make_plan("dp-sgd", epsilon=math.inf, delta=1e-5, examples=2000, batch_size=100, epochs=2)
    assert steps_left(silent, pay(silent, range(10)), 5) == 30
