"""``tacit budget``: what may be spent on a data set in all, and what has been."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, examples, print_figures, print_json

if TYPE_CHECKING:
    from tacit.release.budget import BudgetRecord

app = typer.Typer(help="A privacy budget for a data set, over all runs on it.", no_args_is_help=True)


@app.command(
    epilog=examples(
        "tacit budget init patients.csv --epsilon 8 --unit patient_id",
        "tacit budget init photos/ --epsilon 4 --delta 1e-7 --name clinic",
    )
)
def init(
    source: Annotated[
        str,
        typer.Argument(help="A file, a folder, or a data set by name.", metavar="SOURCE", show_default=False),
    ],
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε that all runs together may cost.")],
    delta: Annotated[
        float, typer.Option("--delta", help="δ of the same promise. (default: 1e-5)", show_default=False)
    ] = 1e-5,
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="Column that says whose row it is. (default: every row is a unit)"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the budget. (default: that of the data)")
    ] = None,
    separator: Annotated[
        str | None, typer.Option("--separator", help="Separator of a CSV file with a --unit.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Encoding of a CSV file with a --unit.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a budget: from now on every run, comparison and audit on this data is counted, and refused beyond it.

    The data is recognised by its path, its content or its name. Runs that took place before are added with tacit budget
    count. Budgets lie in the directory TACIT_BUDGETS, or among your own data; share that directory to share them.
    """
    from tacit.jobs.budget import start_budget

    budget = start_budget(
        source, epsilon=epsilon, delta=delta, unit=unit, name=name, separator=separator, encoding=encoding
    )
    _show(budget, as_json=as_json)


@app.command(epilog=examples("tacit budget show", "tacit budget show patients.csv --page budget.html"))
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A budget by name, or its data. (default: all)", metavar="NAME", show_default=False
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="HTML file to write; it needs no network.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how much of a budget is used, and by what."""
    from tacit.errors import ArgumentError
    from tacit.jobs.budget import all_budgets, budget_record, named_budget
    from tacit.jobs.fingerprint import budgets_dir

    found = all_budgets() if name is None else [named_budget(name)]
    if page is not None:
        if not found:
            raise ArgumentError(f"There is no budget in {budgets_dir()} to write a page about.")
        from tacit.report.budget import write_budget_page

        write_budget_page([budget_record(budget) for budget in found], page)
    if as_json:
        records = [budget_record(budget) for budget in found]
        print_json(records if name is None else records[0])
        return
    for budget in found:
        _show(budget, as_json=False)
    if not found:
        console().print(f"There is no budget in {budgets_dir()}; tacit budget init starts one.")
    if page is not None:
        console().print(f"Written: {page}")


@app.command(epilog=examples("tacit budget cover patients patients-2025.csv"))
def cover(
    name: Annotated[
        str, typer.Argument(help="A budget by name, or its data.", metavar="NAME", show_default=False)
    ],
    source: Annotated[
        str,
        typer.Argument(help="Other data about the same people.", metavar="SOURCE", show_default=False),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Let a budget also count for a copy, a part or a newer version of its data."""
    from tacit.jobs.budget import cover_source

    _show(cover_source(name, source), as_json=as_json)


@app.command(epilog=examples("tacit budget count runs/clinic"))
def count(
    run: Annotated[
        Path, typer.Argument(help="Directory of a run that was finished or given up.", show_default=False)
    ],
    as_json: options.AsJson = False,
) -> None:
    """Count a run for what its ledger has charged.

    That replaces what the run had reserved. A run from before the budget is added, even if it does not fit. A run that
    was given up and counted must be admitted again before it resumes.
    """
    from tacit.jobs.budget import count as count_run

    _show(count_run(run), as_json=as_json)


def _show(budget: BudgetRecord, *, as_json: bool) -> None:
    from tacit.jobs.budget import budget_record

    record = budget_record(budget)
    if as_json:
        print_json(record)
        return
    beforehand = record["epsilon_if_decided_beforehand"]
    rows: list[tuple[str, str]] = [
        ("ε, δ", f"{budget.epsilon:g}, {budget.delta:g}"),
        ("per", "row" if budget.unit is None else f"unit of the column {budget.unit!r}"),
        ("used", f"{100 * budget.used:.1f} %"),
        ("ε so far, had all runs been decided beforehand", f"{beforehand:.4g}"),
        ("data", "\n".join(record["data"])),
        ("file", record["file"]),
    ]
    print_figures(f"Budget {budget.name!r}", rows)
    if record["runs"]:
        console().print(_runs(record["runs"]))


def _runs(runs: list[dict[str, Any]]) -> Table:
    table = Table("when", "what", "where", "state", "releases", "ε alone", "of the budget")
    for run in runs:
        table.add_row(
            run["at"][:16].replace("T", " "),
            run["what"],
            run["place"],
            run["state"],
            f"{run['releases']:,}",
            f"{run['epsilon']:.4g}",
            f"{100 * run['used']:.1f} %",
        )
    return table
