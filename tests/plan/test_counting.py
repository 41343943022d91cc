"""Plans that count the columns of a table before they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tacit.errors import ArgumentError, FileError
from tacit.plan import epsilon_of, load_plan, make_plan, save_plan
from tacit.plan.accountants import Spend
from tacit.plan.plan import Plan, plan_from_record, plan_to_record
from tacit.plan.sources import Columns
from tacit.runs.recounting import recount


def plan(epsilon: float = 1.0, share: float = 0.2) -> Plan:
    return make_plan(
        "dp-sgd", epsilon=epsilon, delta=1e-5, examples=10_000, batch_size=500, epochs=5, counting=(3, share)
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_counting_and_training_together_keep_the_promise(epsilon: float) -> None:
    made = plan(epsilon)
    counts, train = made.phases
    assert (counts.steps, counts.sampling_rate, counts.updates) == (3, 1.0, False)
    assert (made.counts, made.counting) == (3, 1)
    alone = epsilon_of([counts.spend], made.gaussian_delta)
    assert 0.19 * epsilon < alone <= 0.2 * epsilon
    together = {(1.0, counts.noise_multiplier): 3, (train.sampling_rate, train.noise_multiplier): train.steps}
    assert 0.99 * epsilon < recount(together, made.gaussian_delta) <= epsilon * 1.0005


def test_delta_for_names_is_taken_out_of_the_promised_delta() -> None:
    made = plan()
    source = made.phases[0].support
    assert isinstance(source, Columns)
    assert source.delta == pytest.approx(1e-7)
    assert made.gaussian_delta == pytest.approx(1e-5 - source.delta, rel=1e-12)
    assert made.spent() == epsilon_of(made.spends(), 1e-5 - source.delta)
    assert made.spent() > epsilon_of(made.spends(), 1e-5)


def test_a_plan_that_counts_is_read_as_it_was_written_and_older_plans_keep_their_digest(
    tmp_path: Path,
) -> None:
    made = plan()
    save_plan(made, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == made
    plain = make_plan("dp-sgd", epsilon=1, delta=1e-5, examples=10_000, batch_size=500, epochs=5)
    assert "columns" not in str(plan_to_record(plain))
    assert (plain.counts, plain.gaussian_delta) == (0, 1e-5)


def test_counting_that_is_not_what_it_says_is_refused() -> None:
    made = plan()
    counts, train = made.phases
    for phases in (
        (train, counts),
        (counts,),
        (replace(counts, sampling_rate=0.05), train),
        (replace(counts, clip_norm=2.0), train),
        (replace(counts, support=Columns(1e-5)), train),
    ):
        with pytest.raises(ArgumentError):
            replace(made, phases=phases)
    for changed in ({"grouped": True}, {"relation": "replace-one"}):
        with pytest.raises(ArgumentError, match="units of one row only"):
            replace(made, **changed)  # type: ignore[arg-type]
    record = plan_to_record(made)
    record["phases"][0]["support"]["delta"] = 0
    with pytest.raises(FileError):
        plan_from_record(record)


def test_without_noise_nothing_is_promised() -> None:
    made = plan(float("inf"))
    assert {phase.noise_multiplier for phase in made.phases} == {0.0}
    assert made.spends()[0] == Spend(1.0, 0.0, 3)
