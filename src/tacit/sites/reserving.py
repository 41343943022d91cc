"""What a data set that is shared out among sites on this machine takes from its budget.

Every record is at one site, and the answers of other sites do not depend on it. So a record loses what its own site may
spend, and the budget counts the most that any of them may.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.files import read_json, write_json
from tacit.jobs.budget import Reservation, cost_of_plan, give_back, reservation_of, reserve_again
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
    path = folder / BUDGET_FILE
    noted = reservation_of(read_json(path), path) if path.is_file() else None
    experiment = Experiment(data=DataConfig(source=source))
    found = reserve_again(noted, experiment, most_of(plans), "fed run", str(folder.absolute()))
    if found is not None and found != noted:
        write_json(path, found.record)
    return found


def give_back_shared(folder: Path, reserved: Reservation | None) -> None:
    """Take back the reservation of a training of which no site was made."""
    if reserved is not None:
        give_back(reserved)
        (folder / BUDGET_FILE).unlink(missing_ok=True)
