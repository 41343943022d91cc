"""Plans that train several runs and choose among them, within one promise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from tacit.errors import ArgumentError, FileError
from tacit.plan import epsilon_of, load_plan, make_plan, save_plan
from tacit.plan.plan import Plan, plan_from_record, plan_to_record
from tacit.plan.sources import Stops
from tacit.runs.recounting import recount

RATES = (0.125, 1.0)


def plan(epsilon: float = 1.0, share: float = 0.3, **options: object) -> Plan:
    settings = {"examples": 10_000, "batch_size": 500, "epochs": 5, "delta": 1e-5, **options}
    return make_plan("dp-sgd", epsilon=epsilon, tuning=(RATES, share), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_all_runs_and_the_comparison_together_keep_the_promise(epsilon: float) -> None:
    made = plan(epsilon)
    train, choice = made.phases
    assert (train.steps, choice.steps, choice.sampling_rate, choice.updates) == (200, 1, 1.0, False)
    assert isinstance(choice.support, Stops)
    assert (choice.support.at, choice.support.rates) == ((100, 200), RATES)
    alone = epsilon_of([choice.spend], 1e-5)
    assert 0.29 * epsilon < alone <= 0.3 * epsilon
    paid = {(train.sampling_rate, train.noise_multiplier): 200, (1.0, choice.noise_multiplier): 1}
    assert 0.99 * epsilon < recount(paid, 1e-5) <= epsilon * 1.0005


def test_counts_of_columns_come_before_the_runs_and_shift_their_ends() -> None:
    made = plan(counting=(3, 0.2))
    assert [phase.name for phase in made.phases] == ["columns", "train", "choice"]
    assert isinstance(made.phases[-1].support, Stops)
    assert made.phases[-1].support.at == (103, 203)
    assert made.training == made.phases[1:2]
    assert made.spent() <= 1.0


def test_the_figure_is_that_of_gaussians_where_every_example_takes_part() -> None:
    """Without sampling all is Gaussian, and the bound has a closed form: two runs of one step, and the comparison."""
    made = plan(2.0, examples=10, batch_size=10, epochs=1, delta=0.02)
    train, choice = made.phases
    assert (train.steps, train.sampling_rate) == (2, 1.0)
    mu = math.sqrt(2 / train.noise_multiplier**2 + 1 / choice.noise_multiplier**2)
    exact = norm.cdf(mu / 2 - 2.0 / mu) - math.exp(2.0) * norm.cdf(-mu / 2 - 2.0 / mu)
    assert 0.97 * made.delta < exact <= made.delta


@pytest.mark.parametrize("slope", [0.0, 0.5, 3.0, 50.0])
def test_what_is_chosen_is_never_told_apart_better_than_promised(slope: float) -> None:
    """The divergence of the chosen run and its number, integrated: another example shifts both runs by the clip norm,
    and the losses that are compared by a vector of norm at most 1 that depends on what both runs have released."""
    made = plan(2.0, examples=10, batch_size=10, epochs=1, delta=0.02)
    train, choice = made.phases
    sigma, tau = train.noise_multiplier, choice.noise_multiplier
    grid = np.linspace(-8 * sigma, 8 * sigma + 1, 901)
    width = grid[1] - grid[0]
    first, second = np.meshgrid(grid, grid, indexing="ij")
    added = np.tanh(slope * (first + second - 1)) / math.sqrt(
        2
    )  # to the loss of the first, and less to the second

    def output(present: float) -> np.ndarray:
        both = norm.pdf(first, present, sigma) * norm.pdf(second, present, sigma)
        takes_first = norm.cdf(-2 * present * added / (math.sqrt(2) * tau))
        return np.stack([(both * takes_first).sum(1), (both * (1 - takes_first)).sum(0)]) * width

    with_it, without = output(1.0), output(0.0)
    assert with_it.sum() * width == pytest.approx(1, abs=1e-6)
    for one, other in ((with_it, without), (without, with_it)):
        divergence = np.maximum(one - math.exp(2.0) * other, 0).sum() * width
        assert divergence <= made.delta


def test_a_tuned_plan_is_read_as_it_was_written_and_others_keep_their_form(tmp_path: Path) -> None:
    made = plan()
    save_plan(made, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == made
    plain = make_plan("dp-sgd", epsilon=1, delta=1e-5, examples=10_000, batch_size=500, epochs=5)
    assert not plain.choosing
    assert "stops" not in str(plan_to_record(plain))


def test_a_choice_that_is_not_what_it_says_is_refused() -> None:
    made = plan()
    train, choice = made.phases
    assert isinstance(choice.support, Stops)
    for phases in (
        (choice, train),
        (train, choice, replace(train, name="later")),
        (train, replace(choice, steps=2)),
        (train, replace(choice, sampling_rate=0.5)),
        (train, replace(choice, updates=True)),
        (train, replace(choice, support=replace(choice.support, at=(100, 199)))),
        (choice,),
        (replace(train, updates=False), choice),
    ):
        with pytest.raises(ArgumentError):
            replace(made, phases=phases)
    for change in (
        {"at": (200, 100)},
        {"at": (100,)},
        {"rates": (1.0,)},
        {"rates": (0.0, 1.0)},
        {"apart": 1.0},
    ):
        with pytest.raises(ArgumentError):
            replace(choice.support, **change)  # type: ignore[arg-type]
    record = plan_to_record(made)
    record["phases"][1]["noise_multiplier"] /= 2
    with pytest.raises(FileError, match="above the promised"):
        plan_from_record(record)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("tp-topk", {"active_ratio": 0.1}),
        ("dp-sgd", {"tuning": ((1.0,), 0.3)}),
        ("dp-sgd", {"tuning": ((0.5, 1.0), 1.0)}),
        ("dp-sgd", {"tuning": ((0.5, -1.0), 0.3)}),
    ],
)
def test_what_cannot_be_tuned_is_refused(method: str, options: dict[str, object]) -> None:
    settings = {"epsilon": 1.0, "delta": 1e-5, "examples": 1000, "batch_size": 100, "epochs": 5}
    with pytest.raises(ArgumentError):
        make_plan(method, **{"tuning": (RATES, 0.3), **settings, **options})  # type: ignore[arg-type]


def test_a_plan_for_units_pays_for_the_choice_as_one_for_examples_does() -> None:
    options = {"epsilon": 1.0, "delta": 1e-5, "batch_size": 100, "epochs": 5, "tuning": (RATES, 0.3)}
    units, examples = (make_plan("dp-sgd", **options, **{kind: 1000}) for kind in ("units", "examples"))
    assert units.grouped
    assert units.phases == examples.phases


def test_two_phases_that_count_columns_are_refused() -> None:
    made = make_plan(
        "dp-sgd", epsilon=8.0, delta=1e-5, examples=10_000, batch_size=500, epochs=5, counting=(3, 0.2)
    )
    counts, train = made.phases
    with pytest.raises(ArgumentError, match="at most one phase that counts"):
        replace(made, phases=(counts, replace(counts, name="again"), train))
