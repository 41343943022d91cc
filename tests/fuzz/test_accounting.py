"""No figures, however odd, make an accountant crash, hang, or say less than the truth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.effort import tries
from tacit.errors import TacitError
from tacit.plan import ACCOUNTANTS, Spend, epsilon_of, make_plan
from tacit.plan.accountants import in_range
from tacit.plan.plan import plan_digest, plan_from_record, plan_to_record
from tacit.runs import recount

RATES = st.one_of(st.sampled_from([1e-320, 1e-12, 1e-6, 1 - 1e-12, 1.0]), st.floats(1e-4, 1.0))
NOISES = st.one_of(st.sampled_from([0.0, 1e-300, 1e-3, 0.02, 1e7, 1e200]), st.floats(0.3, 30))
STEPS = st.one_of(st.sampled_from([1, 10**5, 10**15]), st.integers(1, 10**4))


@tries(25)
@given(RATES, NOISES, STEPS, st.sampled_from([1e-10, 1e-5, 0.1]))
def test_three_accountants_and_the_recount_agree_on_what_is_hopeless(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    spends = [Spend(rate, noise, steps)]
    found = {name: epsilon_of(spends, delta, name) for name in ACCOUNTANTS}
    found["recount"] = recount({(rate, noise): steps}, delta)
    assert all(epsilon >= 0 for epsilon in found.values())
    assert not any(math.isnan(epsilon) for epsilon in found.values())
    if noise < 1e-2 or steps > 10**7:
        assert set(found.values()) == {math.inf}
    if 0.3 <= noise <= 30 and 1e-4 <= rate < 1 - 1e-9 and steps <= 10**4 and found["pld"] < 500:
        assert found["pld"] <= found["rdp"] * 1.01 + 1e-6
        assert found["rdp"] <= found["theorem-4.1"] * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_rounding_is_always_up(accountant: str) -> None:
    """At each border of the range the figure outside is at least the figure just inside."""

    def cost(rate: float, noise: float, steps: int = 100) -> float:
        return epsilon_of([Spend(rate, noise, steps)], 1e-6, accountant)

    assert cost(1e-12, 0.5) >= cost(1e-8, 0.5) * (1 - 1e-9)
    assert cost(0.5, 1e200) >= cost(0.5, 1e7) * (1 - 1e-9)
    assert cost(0.5, 9e-3) == math.inf
    assert cost(0.5, 1.0, 10**7 + 1) == math.inf


def test_moments_between_whole_orders_are_rounded_up_where_noise_is_tiny() -> None:
    """Below a noise multiplier of 0.1 fractional orders are read off a chord; at 0.1 itself they are integrated."""
    from tacit.plan.accountants import ORDERS, _divergences

    above, below = _divergences(0.01, 0.1), _divergences(0.01, 0.1 - 1e-12)
    assert (below >= above * (1 - 1e-9)).all()
    fractional = [i for i, order in enumerate(ORDERS) if order != round(order)]
    assert (below[fractional] > above[fractional] * (1 + 1e-9)).any()


WORDS = st.sampled_from(["auto", "", "x", "0.5", "squares", "movement", "row", "pld", "inf"])
ANY_NUMBER = st.one_of(
    st.sampled_from([0, -1, 1, 0.3, 0.5, 1e-12, 1e9, 1e308, 10**400, math.inf, math.nan, True, None]), WORDS
)


def mostly(usual: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """The usual values seven times of eight, else anything."""
    return st.integers(0, 7).flatmap(lambda n: usual if n else ANY_NUMBER)


ARGUMENTS = st.fixed_dictionaries(
    {
        "epsilon": mostly(st.floats(0.1, 20)),
        "delta": mostly(st.just(1e-5)),
        "examples": mostly(st.integers(50, 5000)),
        "batch_size": mostly(st.integers(1, 60)),
        "epochs": mostly(st.floats(0.1, 12)),
    },
    optional={
        "active_ratio": mostly(st.sampled_from([0.1, 0.5, 1.0, "auto"])),
        "warmup": mostly(st.tuples(st.floats(0, 1), st.floats(0, 1))),
        "clip_norm": mostly(st.sampled_from([1.0, (1.0, 0.5)])),
        "accountant": st.sampled_from(["rdp", "theorem-4.1", "theorem-4.1", "pdl"]),
        "score": WORDS,
        "pooling": WORDS,
        "per_layer": st.booleans(),
        "reset": st.booleans(),
        "explore": ANY_NUMBER,
        "always_active": st.one_of(WORDS, st.lists(WORDS)),
    },
)


@tries(150)
@given(
    st.sampled_from(["dp-sgd", "tp-topk", "tp-rand", "on-rand", "on-topk", "rs", "sparta", "magic"]),
    ARGUMENTS,
)
def test_any_arguments_make_a_plan_that_keeps_its_promise_or_a_sentence(
    method: str, arguments: dict[str, object]
) -> None:
    arguments.setdefault("accountant", "rdp")
    try:
        plan = make_plan(method, **arguments)  # type: ignore[arg-type]
    except TacitError:
        return
    assert plan.spent() <= plan.epsilon
    assert plan.delta < 1 / plan.examples
    again = plan_from_record(plan_to_record(plan))
    assert again == plan
    assert plan_digest(again) == plan_digest(plan)


@pytest.mark.parametrize("name", ["epsilon", "delta", "examples", "batch_size", "epochs", "clip_norm"])
def test_a_number_beyond_every_float_is_refused(name: str) -> None:
    usual = {"epsilon": 3, "delta": 1e-5, "examples": 1000, "batch_size": 50, "epochs": 2, "clip_norm": 1}
    with pytest.raises(TacitError):
        make_plan("dp-sgd", **{**usual, name: 10**400})  # type: ignore[arg-type]


@given(RATES, NOISES)
def test_figures_are_brought_into_range_by_more_sampling_and_less_noise(rate: float, noise: float) -> None:
    found = in_range(Spend(rate, noise, 7))
    assert 1 >= found.sampling_rate >= max(rate, 1e-8)
    assert found.noise_multiplier <= noise
    assert not found.noise_multiplier or found.sampling_rate / found.noise_multiplier >= 1e-9 * (1 - 1e-9)
    if rate >= 1e-8 and noise <= min(1e7, rate * 1e9):
        assert found == Spend(rate, noise, 7)
