"""The page on budgets: how much is used, and by which runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import FileError
from tacit.files import write_text
from tacit.report.markup import Markup, bar, element, joined, listed, note, section, table, tile, tiles
from tacit.report.page import GENERATOR, framed
from tacit.report.plot import number, share


def write_budget_page(budgets: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write a page on budgets, each as ``tacit budget show --json`` has it; refuse to replace another file."""
    if out.is_dir():
        raise FileError(f"{out} is a directory; name the file to write, as in {out / 'budget.html'}.")
    if out.exists() and GENERATOR.encode() not in out.read_bytes()[:2000]:
        raise FileError(f"{out} exists and is not a report; choose another --page.")
    write_text(out, budget_page(budgets))


def budget_page(budgets: Sequence[Mapping[str, Any]]) -> str:
    """The whole page. The same budgets give the same page, to the byte."""
    names = [str(budget["name"]) for budget in budgets]
    title = f"Budget {names[0]}" if len(names) == 1 else f"{len(names)} budgets"
    content = joined([_budget(budget, f"budget-{place}") for place, budget in enumerate(budgets, 1)])
    return framed(title, content)


def _budget(budget: Mapping[str, Any], key: str) -> Markup:
    used = float(budget["used"])
    per = budget["unit"] or "row"
    return section(
        key,
        f"{budget['name']}: {share(min(used, 1.0))} used",
        2,
        bar(used, 2 if used < 0.8 else 3),
        tiles(
            [
                tile("ε in all", number(budget["epsilon"]), f"per {per}"),
                tile("δ", number(budget["delta"]), "of the same promise"),
                tile("Left", share(max(0.0, 1 - used)), "by the filter, whatever chose the runs"),
                tile(
                    "ε so far",
                    number(budget["epsilon_if_decided_beforehand"]),
                    "had all runs been decided beforehand",
                ),
            ]
        ),
        table(
            ("When", "What", "Where", "State", "Releases", "ε alone", "Of the budget"),
            [
                (
                    str(run["at"])[:16].replace("T", " "),
                    run["what"],
                    run["place"],
                    run["state"],
                    f"{run['releases']:,}",
                    number(run["epsilon"]),
                    share(run["used"]),
                )
                for run in budget["runs"]
            ],
            "Runs on this data",
        )
        if budget["runs"]
        else element("p", "No run yet."),
        element("h3", "Data"),
        listed(budget["data"]),
        element("h3", "Not counted"),
        listed(budget["not_covered"]),
        note(
            "A reserved run counts for all that its plan can cost, until it is finished. What is used is measured by a "
            f"Renyi filter of order {number(budget['order'])}, which holds however runs are chosen."
        ),
    )
