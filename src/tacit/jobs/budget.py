"""The budget of the data that a job uses: found, asked before the job starts, told afterwards what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.data import LOADERS
from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.files import read_json, write_json
from tacit.jobs.fingerprint import budgets_dir, fingerprint
from tacit.jobs.settings import DataConfig, Experiment
from tacit.plan import Plan, load_plan
from tacit.plan.budgets import Cost, together
from tacit.release.budget import (
    BudgetRecord,
    Place,
    cost_of,
    count_run,
    cover,
    create_budget,
    read_budget,
    reserve,
    settle,
)
from tacit.release.ledger import check_idle
from tacit.release.ledger_file import check_head, read_ledger
from tacit.runs.certificate import spends_of
from tacit.runs.layout import EXPERIMENT_FILE, LEDGER_FILE, MODEL_FILE, PLAN_FILE

_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Reservation:
    """What a run has reserved: the budget's file, and the number of the run in it."""

    budget: Path
    number: str

    @property
    def record(self) -> dict[str, str]:
        """For the run's own description."""
        return {"file": str(self.budget), "number": self.number}


def start_budget(
    source: str,
    *,
    epsilon: float,
    delta: float,
    unit: str | None = None,
    name: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
) -> BudgetRecord:
    """Start a budget for a file, a folder or a named data set, one that has none yet.

    ``separator`` and ``encoding`` are those of a CSV file in which ``unit`` is looked up.
    """
    place = place_of(source)
    found = find_budget(source)
    if found is not None:
        raise ArgumentError(f"{source} has the budget {found.name!r} already; tacit budget show says more.")
    if unit is not None:
        _check_unit(source, unit, separator, encoding)
    chosen = _name(name or Path(source).stem)
    return create_budget(
        budgets_dir() / f"{chosen}{_SUFFIX}",
        name=chosen,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        place=place,
    )


def cover_source(name: str, source: str) -> BudgetRecord:
    """Let the budget ``name`` also count for other data about the same people: a copy, a part, a newer version."""
    record = named_budget(name)
    found = find_budget(source)
    if found is not None and found.path != record.path:
        raise ArgumentError(f"{source} has the budget {found.name!r} already.")
    cover(record.path, place_of(source))
    return read_budget(record.path)


def place_of(source: str) -> Place:
    """Where data lies: a path with a fingerprint, or the name of a built-in data set or object."""
    path = Path(source)
    if source in LOADERS or (":" in source and not path.exists()):
        return Place(source)
    if not path.exists():
        raise FileError(f"There is no file, folder or data set {source!r}.")
    found = fingerprint(path)
    if found is None:
        raise FileError(f"{budgets_dir()} cannot hold a key; name another directory in TACIT_BUDGETS.")
    return Place(str(path.resolve()), found.digest, found.key)


def all_budgets() -> list[BudgetRecord]:
    """Every budget of the directory; one that is damaged is refused, because nobody knows what it covers."""
    folder = budgets_dir()
    return [read_budget(path) for path in sorted(folder.glob(f"*{_SUFFIX}"))] if folder.is_dir() else []


def named_budget(name: str) -> BudgetRecord:
    """The budget called ``name``, or the budget of the data called so."""
    path = budgets_dir() / f"{name}{_SUFFIX}"
    if "/" not in name and path.is_file():
        return read_budget(path)
    known = Path(name).exists() or name in LOADERS or ":" in name
    found = find_budget(name) if known else None
    if found is None:
        names = ", ".join(record.name for record in all_budgets()) or "none"
        raise ArgumentError(f"There is no budget {name!r} in {budgets_dir()}; there are: {names}.")
    return found


def find_budget(source: str) -> BudgetRecord | None:
    """The budget that covers data: by its path, its content or its name."""
    budgets = all_budgets()
    if not budgets:
        return None
    path = Path(source)
    here = place_of(source) if path.exists() and source not in LOADERS else Place(source)
    found = [budget for budget in budgets if any(_same(here, place) for place in budget.places)]
    if len(found) > 1:
        names = ", ".join(repr(budget.name) for budget in found)
        raise ArgumentError(
            f"{source} is covered by several budgets ({names}); a run can be paid from one only."
        )
    return found[0] if found else None


def _same(one: Place, other: Place) -> bool:
    content = bool(one.digest) and one.digest == other.digest and one.key == other.key
    return one.source == other.source or content


def cost_of_plan(plan: Plan) -> Cost:
    """What a plan can cost at most."""
    return cost_of(plan.spends(), max(0.0, plan.delta - getattr(plan, "gaussian_delta", plan.delta)))


def reserve_for(experiment: Experiment, costs: Sequence[Cost], what: str, place: str) -> Reservation | None:
    """Reserve what a job may cost, in one piece; nothing where its data has no budget.

    Raises:
        TacitError: If the budget does not let it in, or cannot count it.
    """
    budget = find_budget(experiment.data.source)
    if budget is None:
        return None
    check_countable(budget, experiment.data, experiment.training.seed)
    return Reservation(budget.path, reserve(budget.path, together(costs), what=what, place=place))


def check_countable(budget: BudgetRecord, data: DataConfig, seed: int | None) -> None:
    """Refuse a job whose cost does not stand for what the budget counts."""
    if seed is not None:
        raise ArgumentError(
            f"{data.source} has the budget {budget.name!r}, and noise from a seed, which can be undone, protects "
            "nobody: leave out --seed."
        )
    unit = getattr(data, "unit", None)
    if unit != budget.unit:
        counted, own = (f"the column {name!r}" if name else "single rows" for name in (budget.unit, unit))
        advice = f"say --unit {budget.unit}" if budget.unit else "leave out --unit"
        raise ArgumentError(
            f"The budget {budget.name!r} counts what each unit of {counted} loses, this run protects {own}: {advice}."
        )


def resume_reservation(run_dir: Path, experiment: Experiment, plan: Plan) -> None:
    """Make sure that a resumed run is paid for; one without a reservation, or one that was moved, needs a new one."""
    if (run_dir / MODEL_FILE).is_file() and _all_charged(run_dir, plan):
        return  # it is finished: nothing more is released
    noted = noted_reservation(run_dir)
    reserved = reserve_again(noted, experiment, cost_of_plan(plan), "train", str(run_dir.absolute()))
    if reserved is not None and reserved != noted:
        path = run_dir / EXPERIMENT_FILE
        write_json(path, {**read_json(path), "budget": reserved.record})


def _all_charged(run_dir: Path, plan: Plan) -> bool:
    """Whether every release of a plan is paid for; a model can lie where no run has come to its end."""
    path = run_dir / LEDGER_FILE
    return path.is_file() and len(read_ledger(path).charges) >= plan.steps


def reserve_again(
    noted: Reservation | None, experiment: Experiment, cost: Cost, what: str, place: str
) -> Reservation | None:
    """The reservation of a resumed job at ``place``: the one it has noted, if that still covers the job."""
    if noted is None:
        return reserve_for(experiment, [cost], what, place)
    if not noted.budget.is_file():
        raise LedgerError(
            f"The budget {noted.budget}, which admitted {place}, is gone; restore it to continue."
        )
    known = read_budget(noted.budget).entry(noted.number)
    # A resumed copy of a run is another run.
    number = noted.number if known is not None and known.place == place else None
    return Reservation(noted.budget, reserve(noted.budget, cost, what=what, place=place, number=number))


def renewed(reservation: Reservation, cost: Cost, place: str) -> Reservation:
    """The same reservation, for no less than ``cost``: it may have been given back when a start failed."""
    number = reserve(reservation.budget, cost, what="train", place=place, number=reservation.number)
    return Reservation(reservation.budget, number)


def settle_run(reservation: Reservation, run_dir: Path) -> None:
    """Let a finished run count for what its ledger has charged."""
    settle(reservation.budget, reservation.number, _charged(run_dir))


def give_back(reservation: Reservation) -> None:
    """Take back the reservation of a job that never began: nothing was charged anywhere."""
    settle(reservation.budget, reservation.number, Cost())


def count(run_dir: Path) -> BudgetRecord:
    """Count a run that was finished, or given up, for what its ledger has charged; add it if the budget lacks it."""
    path = run_dir / EXPERIMENT_FILE
    record = read_json(path) if path.is_file() else None
    if not isinstance(record, Mapping) or not (run_dir / LEDGER_FILE).is_file():
        raise FileError(f"{run_dir} is no run of tacit train with a ledger, so there is nothing to count.")
    check_idle(run_dir / LEDGER_FILE)  # an active run will charge more than it is counted for
    noted, cost = noted_reservation(run_dir), _charged(run_dir)
    if noted is not None:
        known, place = read_budget(noted.budget).entry(noted.number), str(run_dir.absolute())
        if known is not None and known.place != place:
            raise ArgumentError(
                f"{run_dir} is a copy of the run at {known.place}, or was moved; that run may have charged more since, "
                "so what the budget counts for it stays. Count it at its own place."
            )
        settle(noted.budget, noted.number, cost)
        return read_budget(noted.budget)
    sections = record.get("experiment")
    source = sections.get("data", {}).get("source") if isinstance(sections, Mapping) else None
    budget = find_budget(source) if isinstance(source, str) and source else None
    if budget is None:
        raise ArgumentError(f"The data of {run_dir} has no budget; tacit budget init starts one.")
    count_run(
        budget.path, read_ledger(run_dir / LEDGER_FILE).run, cost, what="train", place=str(run_dir.absolute())
    )
    return read_budget(budget.path)


def _charged(run_dir: Path) -> Cost:
    ledger = read_ledger(run_dir / LEDGER_FILE)
    check_head(run_dir / LEDGER_FILE, ledger)
    if not ledger.charges:
        return Cost()
    aside = cost_of_plan(load_plan(run_dir / PLAN_FILE)).aside
    return cost_of(spends_of(ledger.charges), aside)


def noted_reservation(run_dir: Path) -> Reservation | None:
    """What a run directory says that it has reserved."""
    path = run_dir / EXPERIMENT_FILE
    record = read_json(path) if path.is_file() else None
    noted = record.get("budget") if isinstance(record, Mapping) else None
    return None if noted is None else reservation_of(noted, path)


def reservation_of(noted: Any, path: Path) -> Reservation:
    """The reservation in the file ``path``."""
    if not isinstance(noted, Mapping) or not all(
        isinstance(noted.get(key), str) for key in ("file", "number")
    ):
        raise FileError(f"{path} does not say which budget it was let in by: it was edited.")
    return Reservation(Path(noted["file"]), noted["number"])


def forecast(data: DataConfig, costs: Sequence[Cost], seed: int | None = None) -> dict[str, Any] | None:
    """What jobs would take from the budget of their data, or why it cannot count them; nothing where it has none."""
    budget = find_budget(data.source)
    if budget is None:
        return None
    cost = together(costs)
    refused = None
    try:
        check_countable(budget, data, seed)
    except ArgumentError as error:
        refused = str(error)
    return {
        "budget": budget.name,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit,
        "used": budget.used,
        "needed": budget.filter.used([cost]),
        "admitted": refused is None and budget.admits(cost),
        "refused": refused,
    }


def forecast_sentence(found: Mapping[str, Any]) -> str:
    """The same in words."""
    if found["refused"] is not None:
        return f"The run would be refused: {found['refused']}"
    state = "fits" if found["admitted"] else "does NOT fit"
    return (
        f"Budget {found['budget']!r} (ε = {found['epsilon']:g}, δ = {found['delta']:g} per {found['unit'] or 'row'}): "
        f"{100 * found['used']:.1f} % used; this takes {100 * found['needed']:.1f} % and {state}."
    )


def budget_record(budget: BudgetRecord) -> dict[str, Any]:
    """A budget in plain values. The digests of the data stay in its file."""
    costs = budget.costs
    return {
        "name": budget.name,
        "file": str(budget.path),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit,
        "data": [place.source for place in budget.places],
        "created": budget.created,
        "used": budget.used,
        "left": max(0.0, 1 - budget.used),
        "order": budget.filter.order,
        "epsilon_if_decided_beforehand": budget.filter.epsilon_beforehand(costs),
        "runs": [
            {
                "number": entry.number,
                "what": entry.what,
                "place": entry.place,
                "at": entry.at,
                "state": "reserved" if entry.charged is None else "settled",
                "releases": sum(spend.steps for spend in entry.cost.spends),
                "epsilon": budget.filter.epsilon_beforehand([entry.cost]),
                "used": budget.filter.used([entry.cost]),
            }
            for entry in budget.entries
        ],
        "not_covered": list(NOT_COVERED),
    }


NOT_COVERED = (
    "what was computed without Tacit's commands: notebooks, plots, and programs with tacit.Trainer or an estimator",
    "figures on held-out or test rows, which are exact",
    "ranges, categories and other facts of the schema that were read off the rows",
    "copies of the data that were edited and lie elsewhere, until tacit budget cover names them",
    "a budget's file that was deleted or put back from a backup together with its note",
)
"""What a budget cannot know or does not promise."""


def _name(text: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-_" else "-" for c in text).strip("-")
    return kept[:80] or "budget"


def _check_unit(source: str, unit: str, separator: str | None, encoding: str | None) -> None:
    from tacit.data.table_file import read_columns

    if Path(source).is_file():
        read_columns(source, separator=separator, encoding=encoding).column(
            unit
        )  # says which columns there are
