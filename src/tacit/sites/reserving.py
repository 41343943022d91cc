"""What federated trainings on this machine take from the budget of their data.

Where a data set is shared out, every record is at one site or client, and the answers of others do not depend on it. So
a record loses what its own site may spend, and the budget counts the most that any of them may. A local client protects
all its records as one, so none of them, and no unit of them, loses more than the client may spend.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from tacit.federated.client import ROUNDING
from tacit.files import read_json, write_json
from tacit.jobs.budget import (
    Reservation,
    cost_of_plan,
    find_budget,
    give_back,
    reservation_of,
    reserve_again,
)
from tacit.jobs.settings import DataConfig, Experiment
from tacit.plan import Plan, Spend
from tacit.plan.budgets import Cost

BUDGET_FILE = "budget.json"


def most_of(plans: Sequence[Plan]) -> Cost:
    """A cost that is no less than that of any plan: more sampling, less noise and more steps only cost more."""
    costs = [cost_of_plan(plan) for plan in plans]
    spends = [spend for cost in costs for spend in cost.spends]
    worst = Spend(
        max(spend.sampling_rate for spend in spends),
        min(spend.noise_multiplier for spend in spends),
        max(sum(spend.steps for spend in cost.spends) for cost in costs),
    )
    return Cost((worst,), max(cost.aside for cost in costs))


def reserve_shared(folder: Path, source: str, plans: Sequence[Plan]) -> Reservation | None:
    """Reserve what the sites below ``folder`` may spend, and note it there; nothing where ``source`` has no budget.

    Raises:
        TacitError: If the budget does not let the training in, or cannot count it.
    """
    return _reserve(folder, source, most_of(plans), "fed run")


def cost_of_clients(epsilon: float) -> Cost:
    """What local clients cost that spend ``epsilon`` each; up to rounding, for which a tiny delta is set aside.

    A pure epsilon (1 + r) is epsilon with delta = epsilon r.
    """
    return Cost(aside=epsilon * ROUNDING, pure=(epsilon,)) if epsilon else Cost()


def reserve_clients(folder: Path, source: str, epsilon: float) -> Reservation | None:
    """Reserve what local clients below ``folder`` may spend each, among whom the rows of ``source`` are shared out."""
    return _reserve(folder, source, cost_of_clients(epsilon), "fed run")


def note_budget(folder: Path, source: str) -> str | None:
    """Note in the folder of a local client which budget its records have, if any; return the name of that budget."""
    budget = find_budget(source)
    if budget is None:
        return None
    write_json(folder / BUDGET_FILE, Reservation(budget.path, uuid.uuid4().hex).record)
    return budget.name


def reserve_client(folder: Path, epsilon: float) -> None:
    """Reserve what a local client may spend in its lifetime, where its records have a budget."""
    if (folder / BUDGET_FILE).is_file():
        _reserve(folder, None, cost_of_clients(epsilon), "fed node")


def _reserve(folder: Path, source: str | None, cost: Cost, what: str) -> Reservation | None:
    path = folder / BUDGET_FILE
    noted = reservation_of(read_json(path), path) if path.is_file() else None
    experiment = Experiment(data=DataConfig(source=source or ""))
    found = reserve_again(noted, experiment, cost, what, str(folder.absolute()))
    if found is not None and found != noted:
        write_json(path, found.record)
    return found


def give_back_shared(folder: Path, reserved: Reservation | None) -> None:
    """Take back the reservation of a training of which no site was made."""
    if reserved is not None:
        give_back(reserved)
        (folder / BUDGET_FILE).unlink(missing_ok=True)
