"""A data set that is shared out among sites is paid for from its budget, once, before any site is made."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.test_fed import tacit
from sites.small import question, records, terms
from tacit.errors import ArgumentError, FileError, LedgerError, TacitError
from tacit.jobs.budget import cost_of_plan, start_budget
from tacit.release.budget import BudgetRecord, read_budget
from tacit.sites import one_machine
from tacit.sites.one_machine import run_on_this_machine
from tacit.sites.reserving import most_of
from tacit.sites.vault import Vault, create_site, plan_of

pytestmark = pytest.mark.usefixtures("quick_looks")

EPSILON = 4.0


class EndError(TacitError):
    """The sites are made; what follows is not what these tests are about."""


@pytest.fixture(autouse=True)
def made_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = records(tmp_path).dataset
    task = replace(terms().task, train=rows, held_out=rows)

    @contextmanager
    def vaults(folders: list[Path]) -> Any:
        raise EndError
        yield

    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    monkeypatch.setattr(one_machine, "load", lambda name, data_dir: task)
    monkeypatch.setattr(one_machine, "vaults", vaults)


def run(folder: Path, *, secure_sum: bool = False, epsilon: float = EPSILON) -> None:
    run_on_this_machine(folder, "adult", terms().training, sites=2, epsilon=epsilon, secure_sum=secure_sum)


def budget(epsilon: float = 1.5 * EPSILON, **options: Any) -> BudgetRecord:
    return start_budget("adult", epsilon=epsilon, delta=1e-5, **options)


@pytest.mark.parametrize("secure_sum", [False, True])
def test_a_training_is_reserved_once_and_the_next_one_must_fit(tmp_path: Path, secure_sum: bool) -> None:
    path = budget().path
    for _ in range(2):
        with pytest.raises(EndError):
            run(tmp_path / "one", secure_sum=secure_sum)
    (entry,) = read_budget(path).entries
    assert (entry.what, entry.place) == ("fed run", str(tmp_path / "one"))
    assert read_budget(path).used > 0.4
    with pytest.raises(LedgerError, match="does not let this run in"):
        run(tmp_path / "two", secure_sum=secure_sum)
    assert len(read_budget(path).entries) == 1
    assert not list((tmp_path / "two").rglob("records*"))
    assert not list((tmp_path / "two").rglob("training.toml"))  # other terms may be tried in the same folder


def test_a_copy_of_a_training_that_goes_on_is_another_one(tmp_path: Path) -> None:
    path = budget().path
    with pytest.raises(EndError):
        run(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    with pytest.raises(LedgerError, match="does not let this run in"):
        run(tmp_path / "two")
    (tmp_path / "two").rename(tmp_path / "one")
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="is gone"):
        run(tmp_path / "one")


def test_a_training_that_began_before_the_budget_is_paid_for_when_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(EndError):
        run(tmp_path / "one")
    path = budget(epsilon=0.5 * EPSILON).path
    with pytest.raises(LedgerError, match="does not let this run in"):
        run(tmp_path / "one")
    assert not read_budget(path).entries


def test_a_start_that_fails_gives_back_what_it_had_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = budget().path

    def fail(*_: Any, **__: Any) -> None:
        raise FileError("the disk is full")

    monkeypatch.setattr(one_machine, "create_site", fail)
    with pytest.raises(FileError, match="full"):
        run(tmp_path / "one")
    assert read_budget(path).used == 0
    monkeypatch.setattr(one_machine, "create_site", create_site)
    with pytest.raises(EndError):
        run(tmp_path / "one")
    assert read_budget(path).used > 0.4


def test_a_site_that_has_paid_is_never_made_anew(tmp_path: Path) -> None:
    """Without its description a site looks like one that was never finished."""
    with pytest.raises(EndError):
        run(tmp_path / "one")
    folder = tmp_path / "one" / "site-1"
    before = (folder / "ledger.jsonl").read_bytes()
    (folder / "site.json").unlink()
    with pytest.raises(EndError):  # nothing was paid: it is made anew
        run(tmp_path / "one")
    assert (folder / "ledger.jsonl").read_bytes() != before
    vault = Vault(folder)
    vault.respond(question(vault.terms, 1))
    vault.close()
    paid = (folder / "ledger.jsonl").read_bytes()
    (folder / "site.json").unlink()
    with pytest.raises(FileError, match=r"lacks site\.json, and its ledger holds charges"):
        run(tmp_path / "one")
    assert (folder / "ledger.jsonl").read_bytes() == paid


def test_a_budget_per_person_cannot_count_rows_that_are_shared_out(tmp_path: Path) -> None:
    budget(unit="patient")
    with pytest.raises(ArgumentError, match="this run protects single rows"):
        run(tmp_path / "one")


def test_sites_of_different_sizes_cost_as_much_as_the_worst(tmp_path: Path) -> None:
    rows = records(tmp_path)
    parts = [rows, replace(rows, x=rows.x[:51], y=rows.y[:51])]
    plans = [plan_of(terms(), part, EPSILON, 1e-5) for part in parts]
    assert len({plan.sampling_rate for plan in plans}) == 2
    fits = budget().filter
    assert fits.used([most_of(plans)]) >= max(fits.used([cost_of_plan(plan)]) for plan in plans)
    assert fits.used([most_of(plans)]) < fits.used([cost_of_plan(plan) for plan in plans])


@pytest.mark.parametrize("line", ["fed simulate adult"])
def test_what_a_budget_cannot_count_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = budget().path
    said = str(tacit(line).exception)
    assert said.startswith("adult has the budget 'adult', which cannot count this")
    assert not read_budget(path).entries
    assert not (tmp_path / "run").exists()
