"""Calibration keeps the promise, uses it up, and answers quickly."""

from __future__ import annotations

import math

import pytest

from tacit.errors import ArgumentError
from tacit.plan import Plan, Spend, accountants, epsilon_of, make_plan

EXAMPLES = 50_000
DELTA = 1e-5


def plan_with(method: str, epsilon: float, rate: float, steps: int, **options: object) -> Plan:
    return make_plan(
        method,
        epsilon=epsilon,
        delta=DELTA,
        examples=EXAMPLES,
        batch_size=round(rate * EXAMPLES),
        epochs=steps * rate,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("steps", [50, 100_000])
@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_the_promise_is_kept_and_used_up(epsilon: float, rate: float, steps: int) -> None:
    plan = plan_with("dp-sgd", epsilon, rate, steps)
    assert plan.steps == steps
    assert 0.995 * epsilon <= plan.spent() <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"),
    [(0.1, 0.3, 100_000), (1.0, 0.02, 1000), (3.0, 0.001, 10_000), (8.0, 0.02, 60)],
)
def test_both_phases_together_meet_epsilon_and_the_warm_up_alone_its_share(
    epsilon: float, rate: float, steps: int
) -> None:
    plan = plan_with("tp-topk", epsilon, rate, steps, active_ratio=0.3, warmup=(0.2, 0.4))
    warm_up, sparse = plan.phases
    assert warm_up.steps == round(0.2 * steps)
    assert warm_up.steps + sparse.steps == steps
    # Composed anew from the numbers that the run will use, not through the plan.
    first = Spend(rate, warm_up.noise_multiplier, warm_up.steps)
    second = Spend(rate, sparse.noise_multiplier, sparse.steps)
    assert 0.995 * 0.4 * epsilon <= epsilon_of([first], DELTA) <= 0.4 * epsilon
    assert 0.995 * epsilon <= epsilon_of([first, second], DELTA) <= epsilon
    assert sparse.noise_multiplier != warm_up.noise_multiplier


@pytest.mark.parametrize("accountant", ["rdp", "theorem-4.1"])
def test_the_other_accountants_keep_their_own_promise(accountant: str) -> None:
    plan = plan_with("tp-topk", 3.0, 0.02, 1000, active_ratio=0.3, accountant=accountant)
    assert 0.995 * 3 <= plan.spent() <= 3
    assert plan.spent(accountant="pld") < 0.97 * 3


def test_epsilon_is_never_above_the_target_by_a_tolerance() -> None:
    for epsilon in (0.37, 0.9, 1.7, 2.345, 5.5, 11.0):
        plan = plan_with("dp-sgd", epsilon, 0.02, 300)
        assert plan.spent() <= epsilon
        # The true value, on a grid fine enough to be far more precise than the margin.
        assert accountants.pld_epsilon(plan.spends(), DELTA, tolerance=1e-5) <= epsilon


def test_a_large_warm_up_share_leaves_little_but_keeps_the_promise() -> None:
    plan = plan_with("tp-topk", 2.0, 0.02, 500, active_ratio=0.3, warmup=(0.5, 0.97))
    assert plan.phases[1].noise_multiplier > 2 * plan.phases[0].noise_multiplier
    assert 0.995 * 2 <= plan.spent() <= 2


def test_q_equal_to_one_is_the_plain_gaussian() -> None:
    plan = make_plan("dp-sgd", epsilon=1.0, delta=1e-5, examples=100, batch_size=100, epochs=4)
    assert plan.steps == 4
    # Balle and Wang: a single Gaussian release with (1, 1e-5) needs deviation 3.73 per unit of sensitivity.
    assert plan.phases[0].noise_multiplier == pytest.approx(2 * 3.73, rel=5e-3)


def test_an_infinite_epsilon_gives_the_same_phases_without_noise() -> None:
    silent = plan_with("tp-topk", math.inf, 0.02, 100, active_ratio=0.3)
    assert [phase.noise_multiplier for phase in silent.phases] == [0, 0]
    assert silent.spent() == math.inf


def test_clip_norms_per_noise_level() -> None:
    plan = plan_with("tp-topk", 3.0, 0.02, 100, active_ratio=0.3, clip_norm=(2.0, 0.5))
    assert [phase.clip_norm for phase in plan.phases] == [2.0, 0.5]
    even = plan_with("tp-topk", 3.0, 0.02, 100, active_ratio="auto", clip_norm=(2.0, 0.5))
    assert [phase.clip_norm for phase in even.phases] == [2.0, 0.5]
    assert even.phases[0].noise_multiplier == even.phases[1].noise_multiplier
    with pytest.raises(ArgumentError, match="one per noise level"):
        plan_with("dp-sgd", 3.0, 0.02, 100, clip_norm=(2.0, 0.5))


GOOD: dict[str, object] = {
    "method": "tp-topk",
    "epsilon": 1.0,
    "delta": 1e-5,
    "examples": 1000,
    "batch_size": 100,
    "epochs": 10,
    "active_ratio": 0.3,
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"epsilon": -1.0}, "epsilon must be above 0"),
        ({"epsilon": math.nan}, "epsilon must be above 0"),
        ({"epsilon": "3"}, "epsilon must be a number"),
        ({"delta": 1e-3}, "not below 1/examples"),
        ({"delta": 0}, "delta must be at least"),
        ({"delta": 1e-12}, "delta must be at least"),
        ({"batch_size": 1001}, "larger than the data set of 1000"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"batch_size": 10.5}, "batch_size must be a whole number"),
        ({"examples": 0}, "examples must be a whole number"),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": 0.01}, "make no step"),
        ({"active_ratio": 0}, r"active_ratio must lie in \(0, 1\]"),
        ({"active_ratio": 1.2}, r"active_ratio must lie in \(0, 1\]"),
        ({"active_ratio": "automatic"}, "or be 'auto'"),
        ({"active_ratio": None}, "tp-topk needs active_ratio"),
        ({"warmup": (0, 0.3)}, r"share of steps must lie in \(0, 1\)"),
        ({"warmup": (0.3, 1)}, r"share of epsilon must lie in \(0, 1\)"),
        ({"warmup": (0.3, "x")}, "share of epsilon must be a number"),
        ({"warmup": (0.3, 0.3, 0.3)}, "warmup must be"),
        ({"warmup": (0.001, 0.3)}, "0 for the warm-up"),
        ({"warmup": (0.999, 0.3)}, "0 for the rest"),
        ({"clip_norm": 0}, "clip_norm must be"),
        ({"clip_norm": -1.0}, "clip_norm must be"),
        ({"accountant": "prv"}, "Unknown accountant 'prv'"),
        ({"method": "tp-top"}, "did you mean 'tp-topk'"),
        ({"method": "TP_TopK"}, "did you mean 'tp-topk'"),
        ({"method": "sgd"}, "did you mean 'dp-sgd'"),
        ({"method": "dp-sgd"}, "dp-sgd has no option 'active_ratio'"),
        (
            {"method": "on-topk", "warmup": (0.3, 0.3)},
            r"'warmup' \(an option of tp-topk, tp-rand\); it takes",
        ),
        ({"method": "on-topk", "active_ratio": "auto"}, "must be a number"),
        ({"method": "on-topk", "explore": 1.0}, "explore must lie in"),
        ({"score": "magic"}, "score must be one of"),
        ({"pooling": "diagonal"}, "pooling must be one of"),
        ({"per_layer": "yes"}, "per_layer must be"),
        ({"always_active": "head.*"}, "always_active must be a list"),
    ],
)
def test_bad_arguments_give_one_clear_sentence(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        make_plan(**{**GOOD, **changed})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
