"""The budget's file: durable, chained, one process at a time, and never less than what was let in."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tacit.errors import LedgerError
from tacit.plan import make_plan
from tacit.plan.accountants import Spend
from tacit.plan.budgets import Cost
from tacit.release import budget as budgets
from tacit.release.budget import (
    Place,
    cost_of,
    count_run,
    cover,
    create_budget,
    read_budget,
    reserve,
    settle,
)
from tacit.release.ledger_file import head_file, ledger_line, note_head

COST = cost_of([Spend(0.05, 2.0, 200)])
HALF = cost_of([Spend(0.05, 2.0, 100)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = Place("/data/p.csv", "a" * 64, "k")
    create_budget(tmp_path / "p.jsonl", name="p", epsilon=4, delta=1e-6, unit=None, place=place)
    return tmp_path / "p.jsonl"


def fill(path: Path) -> int:
    for count in range(100):
        try:
            reserve(path, COST, what="train", place=f"run-{count}")
        except LedgerError:
            return count
    raise AssertionError("the budget has no end")


def test_runs_are_let_in_until_the_budget_is_used_and_then_refused_in_a_sentence(path: Path) -> None:
    assert fill(path) > 3
    record = read_budget(path)
    assert 0.7 < record.used <= 1
    assert record.filter.epsilon_beforehand(record.costs) <= 4
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"does not let this run in: .* % are used, and the run would need"):
        reserve(path, COST, what="train", place="one more")
    assert path.read_bytes() == before


def test_a_reservation_stays_until_it_is_settled_and_then_counts_for_what_was_charged(path: Path) -> None:
    number = reserve(path, COST, what="train", place="run")
    reserved = read_budget(path).used
    assert reserved > 0
    settle(path, number, HALF)
    assert 0 < read_budget(path).used < reserved
    settle(path, number, cost_of([Spend(0.05, 2.0, 400)]))  # more than was reserved counts in full
    assert read_budget(path).used > reserved
    with pytest.raises(LedgerError, match="knows no run"):
        settle(path, "another", HALF)


def test_a_run_that_goes_on_is_raised_to_what_it_may_cost_again(path: Path) -> None:
    number = reserve(path, COST, what="train", place="run")
    settle(path, number, HALF)
    assert reserve(path, COST, what="train", place="run", number=number) == number
    record = read_budget(path)
    assert record.costs == (COST,)
    assert len(record.entries) == 1
    size = path.stat().st_size
    assert reserve(path, HALF, what="train", place="run", number=number) == number
    assert path.stat().st_size == size  # it counts for that already


def test_going_on_is_refused_if_others_have_used_the_rest_meanwhile(path: Path) -> None:
    number = reserve(path, COST, what="train", place="run")
    settle(path, number, Cost())
    fill(path)
    with pytest.raises(LedgerError, match="does not let this run in"):
        reserve(path, COST, what="train", place="run", number=number)


def test_a_run_from_before_the_budget_counts_even_if_it_does_not_fit(path: Path) -> None:
    huge = cost_of([Spend(0.5, 0.8, 5000)])
    count_run(path, "old", huge, what="train", place="run")
    count_run(path, "old", huge, what="train", place="run")
    record = read_budget(path)
    assert record.costs == (huge,)
    assert record.used > 1
    with pytest.raises(LedgerError):
        reserve(path, HALF, what="train", place="next")


def test_places_are_added(path: Path) -> None:
    other = Place("/data/copy.csv", "b" * 64, "k")
    cover(path, other)
    cover(path, other)
    assert read_budget(path).places == (Place("/data/p.csv", "a" * 64, "k"), other)


def test_a_budget_is_never_started_again(path: Path) -> None:
    place = Place("nhanes")
    with pytest.raises(LedgerError, match="exists already"):
        create_budget(path, name="p", epsilon=9, delta=1e-6, unit=None, place=place)
    path.unlink()
    with pytest.raises(LedgerError, match="is lost"):
        create_budget(path, name="p", epsilon=9, delta=1e-6, unit=None, place=place)


def test_a_budget_that_was_cut_edited_or_reordered_lets_nothing_in(path: Path) -> None:
    reserve(path, COST, what="train", place="one")
    reserve(path, COST, what="train", place="two")
    whole = path.read_bytes()
    first, second, third = whole.splitlines(keepends=True)
    for damaged, reason in (
        (first + second, "does not reach as far"),
        (first + third, "does not follow"),
        (first + third + second, "does not follow"),
        (whole.replace(b'"train"', b'"trait"', 1), "does not fit its content"),
        (whole.replace(b",200]", b",20]", 1), "does not fit its content"),
        (b"", "no complete header"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match=reason):
            reserve(path, HALF, what="train", place="three")
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    assert len(read_budget(path).entries) == 2


@pytest.mark.parametrize("left", [1, 40, -1])
def test_an_incomplete_last_line_was_never_acted_upon_and_is_set_aside(path: Path, left: int) -> None:
    before = path.read_bytes()
    note = head_file(path).read_bytes()
    reserve(path, COST, what="train", place="one")
    after = path.read_bytes()
    head_file(path).write_bytes(note)  # the crash came before the note
    path.write_bytes(after[: len(before) + left] if left > 0 else after[:left])
    reserve(path, HALF, what="train", place="two")
    record = read_budget(path)
    # A line that lacks only its newline is whole, and counts.
    assert [entry.place for entry in record.entries] == (["two"] if left > 0 else ["one", "two"])


def test_nothing_is_let_in_unless_its_line_is_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="cannot be written"):
        reserve(path, COST, what="train", place="one")
    monkeypatch.undo()
    # The line may be there all the same; then it counts.
    assert len(read_budget(path).entries) <= 1


def _fill(path: Path, queue: multiprocessing.Queue[int]) -> None:
    queue.put(fill(path))


def test_processes_at_once_together_get_no_more_than_one_alone(path: Path, tmp_path: Path) -> None:
    place = Place("nhanes")
    alone = tmp_path / "alone.jsonl"
    create_budget(alone, name="alone", epsilon=4, delta=1e-6, unit=None, place=place)
    expected = fill(alone)
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[int] = context.Queue()
    workers = [context.Process(target=_fill, args=(path, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    counts = [queue.get(timeout=100) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(counts) == expected == len(read_budget(path).entries)


def test_a_lock_that_is_not_given_up_is_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_WAIT_SECONDS", 0.1)
    with (
        budgets._held(path),
        pytest.raises(LedgerError, match="in use by another process"),
    ):
        reserve(path, COST, what="train", place="one")


def test_shares_that_are_stated_are_rounded_up(path: Path) -> None:
    assert budgets._percent(0.39901) == "40 %"
    assert budgets._percent(0.3) == "30 %"


def test_pure_costs_are_written_read_and_compared(path: Path) -> None:
    one = cost_of((), 1e-12, [1.0])
    number = reserve(path, one, what="fed node", place="client")
    assert [entry.cost for entry in read_budget(path).entries] == [one]
    assert reserve(path, cost_of((), 1e-12, [0.5]), what="fed node", place="client", number=number) == number
    assert len(path.read_text().splitlines()) == 2  # the reservation covers it
    reserve(path, cost_of((), 1e-12, [3.0]), what="fed node", place="client", number=number)
    assert read_budget(path).used == 0.75
    with pytest.raises(LedgerError, match="does not let this run in"):
        reserve(path, cost_of((), 1e-12, [1.5]), what="fed node", place="other")
    assert not budgets._covers(cost_of((), 0, [1.0, 1.0]), cost_of((), 0, [2.0]))
    assert budgets._covers(cost_of((), 0, [2.0, 1.0]), cost_of((), 0, [2.0]))


def test_what_a_run_was_let_in_with_is_never_less_than_it_was_raised_to(path: Path) -> None:
    """A first run that filled the budget by the tight bound stays the only one, also if it was small at first."""
    number = reserve(path, cost_of([Spend(0.1, 20.0, 1)]), what="train", place="run")
    settle(path, number, Cost())
    plan = make_plan("dp-sgd", epsilon=4, delta=1e-6, examples=2000, batch_size=200, epochs=10)
    reserve(path, cost_of(plan.spends()), what="train", place="run", number=number)
    settle(path, number, HALF)
    with pytest.raises(LedgerError, match="does not let this run in"):
        reserve(path, cost_of([Spend(0.001, 50.0, 1)]), what="train", place="other")


def test_a_run_that_has_begun_is_raised_as_far_as_the_filter_goes(path: Path) -> None:
    """Whoever raises it has seen its first results, so the tight bound, which is for what was decided on before, is not
    enough."""
    plan = make_plan("dp-sgd", epsilon=4, delta=1e-6, examples=2000, batch_size=200, epochs=10)
    number = reserve(path, cost_of([Spend(0.1, 20.0, 1)]), what="train", place="run")
    with pytest.raises(LedgerError, match="does not let this run in"):
        reserve(path, cost_of(plan.spends()), what="train", place="run", number=number)


def test_a_raised_run_still_counts_for_what_it_counted_for_before(path: Path) -> None:
    """Local clients and sites in one folder have one number; neither forgets what the other has spent."""
    number = reserve(path, cost_of((), 0.0, [1.0]), what="fed run", place="folder")
    for noise in (20.0, 30.0):
        reserve(path, cost_of([Spend(0.1, noise, 5)]), what="fed run", place="folder", number=number)
    (entry,) = read_budget(path).entries
    assert entry.cost == cost_of([Spend(0.1, 20.0, 5), Spend(0.1, 30.0, 5)], 0.0, [1.0])
    with pytest.raises(LedgerError, match="does not let this run in"):
        reserve(path, cost_of([Spend(0.1, 2.0, 400)]), what="fed run", place="folder", number=number)


def test_a_ledger_that_was_put_back_does_not_lower_what_a_run_was_settled_with(path: Path) -> None:
    number = reserve(path, cost_of([Spend(0.1, 20.0, 120)]), what="train", place="run")
    settle(path, number, cost_of([Spend(0.1, 20.0, 100)]))
    with pytest.raises(LedgerError, match="was counted for more already"):
        settle(path, number, cost_of([Spend(0.1, 20.0, 20)]))
    reserve(path, cost_of([Spend(0.1, 20.0, 120)]), what="train", place="run", number=number)
    settle(path, number, cost_of([Spend(0.1, 20.0, 110)]))
    assert read_budget(path).costs == (cost_of([Spend(0.1, 20.0, 110)]),)


@pytest.mark.parametrize(
    "pure", ["1", [0], [-1.0], ["1"], [True], [1e300], [float("nan")], {"0": 1}, [[1.0]]]
)
def test_an_edited_pure_cost_is_refused(path: Path, pure: object) -> None:
    reserve(path, cost_of((), 0.0, [1.0]), what="fed node", place="client")
    record = read_budget(path)
    about = {"number": "x", "what": "w", "place": "p", "spends": [], "aside": 0.0, "pure": pure}
    try:
        line, digest = ledger_line({"reserve": about}, record.head)
    except ValueError:
        return  # no JSON
    path.write_bytes(path.read_bytes() + line)
    note_head(path, digest)
    with pytest.raises(LedgerError, match="holds nothing that a budget has"):
        read_budget(path)
