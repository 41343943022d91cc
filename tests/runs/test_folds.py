"""What the runs of a cross-validation promise together, and that verification finds every lie about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs.test_certificate import make_run
from tacit.plan import Plan, Spend, epsilon_of, make_plan
from tacit.plan.accountants import RELATION, REPLACE_ONE
from tacit.plan.budgets import Cost
from tacit.runs import write_certificate
from tacit.runs.folds import planned_promise, promise_of, verify_folds, write_promise
from tacit.runs.layout import EXPERIMENT_FILE, FOLDS_FILE, FOLDS_PAGE

NAMES = ("fold-1", "fold-2", "fold-3")


def steps(spends: Any, delta: float) -> float:
    return float(sum(spend.steps for spend in spends))


def costs(*counts: int) -> list[Cost]:
    return [Cost((Spend(0.1, 1.0 + place, count),), 1e-7 * count) for place, count in enumerate(counts)]


def test_a_unit_is_in_all_runs_but_one_and_the_worst_choice_of_that_one_is_the_promise() -> None:
    found = promise_of(costs(3, 7, 5), 1e-5, RELATION, steps)
    assert (found.epsilon, found.touched, found.runs) == (12.0, 2, 3)
    assert found.delta == pytest.approx(1e-5 + 12e-7)  # what the runs have set aside comes on top


def test_a_unit_that_is_replaced_may_change_every_run() -> None:
    found = promise_of(costs(3, 7, 5), 1e-5, REPLACE_ONE, steps)
    assert (found.epsilon, found.touched) == (15.0, 3)


def test_the_promise_of_plans_composes_their_spends() -> None:
    plans = [
        make_plan("dp-sgd", epsilon=1.0, delta=1e-5, examples=n, batch_size=64, epochs=2, accountant="rdp")
        for n in (600, 640, 620)
    ]
    worst = max(
        epsilon_of([*one.spends(), *other.spends()], 1e-5, "rdp")
        for one, other in ((plans[0], plans[1]), (plans[0], plans[2]), (plans[1], plans[2]))
    )
    assert planned_promise(plans).epsilon == worst
    assert 1.0 < worst < 2.0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folds")
    plan: Plan = make_plan(
        "dp-sgd", epsilon=2.0, delta=1e-5, examples=2000, batch_size=100, epochs=2, accountant="rdp"
    )
    for name in NAMES:
        (folder / name).mkdir()
        make_run(folder / name, plan, steps=plan.steps)
        write_certificate(folder / name)
    write_promise(folder, NAMES, {"mean": {"auc": 0.8}})
    return folder


@pytest.fixture
def folds(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "folds"))


def test_a_cross_validation_verifies_as_a_whole(folds: Path) -> None:
    verdict = verify_folds(folds)
    assert verdict.agrees, verdict.problems
    assert verdict.for_release
    assert verdict.epsilon is not None
    assert verdict.claimed is not None
    assert 2.0 < verdict.epsilon <= verdict.claimed < 4.0  # two runs of three, composed
    record = json.loads((folds / FOLDS_FILE).read_text())
    assert "2 of them were trained on any one unit" in record["statement"]
    assert record["statement"] in (folds / FOLDS_PAGE).read_text()


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda record: {**record, "epsilon": 2.0}, "all runs together cost"),
        (lambda record: {**record, "delta": 1e-9}, "another delta"),
        (lambda record: {**record, "touched": 1}, "another number of runs"),
        (lambda record: {**record, "for_release": False}, "whether it is for release"),
        (lambda record: {**record, "statement": "All is well."}, "does not fit its figures"),
        (lambda record: {**record, "runs": {**record["runs"], "fold-2": "0" * 64}}, "is not the one"),
        (lambda record: {**record, "runs": {}}, "not finished"),
        (lambda record: {**record, "format": "x"}, "no cross-validation"),
    ],
)
def test_edits_of_the_promise_are_found(
    folds: Path, edit: Callable[[dict[str, Any]], dict[str, Any]], problem: str
) -> None:
    path = folds / FOLDS_FILE
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    verdict = verify_folds(folds)
    assert not verdict.agrees
    assert any(problem in found for found in verdict.problems), verdict.problems


def test_a_run_that_is_gone_or_a_page_that_was_edited_is_found(folds: Path) -> None:
    page = folds / FOLDS_PAGE
    page.write_text(page.read_text().replace("2 of them", "1 of them"))
    assert any("one of the two was edited" in found for found in verify_folds(folds).problems)
    shutil.rmtree(folds / "fold-3")
    assert any(found.startswith("fold-3: ") for found in verify_folds(folds).problems)


def test_leaving_a_run_out_of_the_list_is_found(folds: Path) -> None:
    path = folds / FOLDS_FILE
    record = json.loads(path.read_text())
    del record["runs"]["fold-3"]
    path.write_text(json.dumps(record))
    verdict = verify_folds(folds)
    assert any("number of runs per unit" in found for found in verdict.problems), verdict.problems


def test_a_shorter_list_that_adds_up_by_itself_is_found_by_the_run_beside_it(folds: Path) -> None:
    write_promise(folds, NAMES[:2], {"mean": {"auc": 0.8}})
    verdict = verify_folds(folds)
    assert not verdict.agrees
    assert any("does not list fold-3" in found for found in verdict.problems), verdict.problems


def _hold_out(folder: Path, *parts: str) -> None:
    for name, part in zip(NAMES, parts, strict=True):
        record = {"experiment": {"data": {"fold": part}}}
        (folder / name / EXPERIMENT_FILE).write_text(json.dumps(record))


def test_every_part_of_the_data_is_held_out_once(folds: Path) -> None:
    """A part that two runs hold out is trained on in fewer runs; another one then is in all of them."""
    _hold_out(folds, "1/3", "2/3", "3/3")
    assert not any("every part" in found for found in verify_folds(folds).problems)
    for parts in (
        ("1/3", "1/3", "3/3"),
        ("1/3", "2/3", "3/4"),
        ("1/5", "2/5", "3/5"),
        ("1/3", "2/3", "None"),
    ):
        _hold_out(folds, *parts)
        verdict = verify_folds(folds)
        assert not verdict.agrees
        assert any("every part of the data once" in found for found in verdict.problems), parts


def test_a_run_elsewhere_is_none_of_the_cross_validation(folds: Path, tmp_path: Path) -> None:
    shutil.move(folds / "fold-3", tmp_path / "fold-3")
    names = (*NAMES[:2], "../fold-3")
    write_promise(folds, names, {})
    assert any("no run in its folder" in found for found in verify_folds(folds).problems)
