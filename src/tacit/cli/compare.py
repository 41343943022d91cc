"""``tacit compare``: several methods, budgets and seeds on one task; table, figure, JSON."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, drawn, examples, plain, print_json, progress_bar
from tacit.errors import ArgumentError

if TYPE_CHECKING:
    from tacit.jobs.summary import Row

COMPARE_EXAMPLE = examples(
    "tacit compare nhanes --methods dp-sgd,tp-topk,no-noise --epsilons 1,3 --seeds 5 --out comparison",
    "tacit compare customers.csv --target churn --methods dp-sgd,tp-topk:0.2,tp-topk:auto",
)


@options.job_options(
    options.offer("data", but=("task", "tokenizer", "public")),
    options.offer("model", only=("name",)),
    options.offer("method", only=("active_ratio",)),
    options.offer("privacy", only=("delta",)),
    options.offer("training", only=("batch_size", "epochs", "clip_norm", "learning_rate")),
)
def compare(
    settings: options.Settings,
    config: options.ConfigFile = None,
    methods: Annotated[
        str,
        typer.Option("--methods", help="Comma-separated methods, with an active ratio as in tp-topk:0.4."),
    ] = "dp-sgd,tp-topk,no-noise",
    epsilons: Annotated[str, typer.Option("--epsilons", help="Comma-separated budgets ε.")] = "3",
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds, from 0.")] = 5,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for results; the same command continues from there.")
    ] = Path("comparison"),
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods, pair by pair over seeds, and draw the result.

    SOURCE is as for tacit train. The same command again continues where it was interrupted.

    Every run has seeded noise and is not for release. Choosing a method by this on private data is not
    covered by ε: compare on public data, or give the data a budget (tacit budget). Then all runs are reserved
    from it before the first starts, have noise that nobody can repeat, and what they cost is said first.
    """
    if seeds < 1:
        raise ArgumentError(f"--seeds must be at least 1, got {seeds}.")
    budgets = options.numbers("--epsilons", epsilons)
    labels = [label.strip() for label in methods.split(",") if label.strip()]
    experiment = options.experiment_from(settings, config)
    from tacit.files import write_json
    from tacit.jobs.budget import find_budget, forecast, forecast_sentence
    from tacit.jobs.comparison import cells_of, check_cells, costs_of, kept_cells, run_cells
    from tacit.jobs.held_out import measures
    from tacit.jobs.plots import draw_comparison
    from tacit.jobs.run import join_processes, resolve
    from tacit.jobs.summary import COMPARISON_FILE, comparison_record, summarise

    join_processes("compare")
    # Loads the data once here, so that a mistake in it is one sentence and not one per process.
    job = resolve(experiment)
    experiment = dataclasses.replace(experiment, data=job.experiment.data)
    budget = find_budget(experiment.data.source)
    cells = cells_of(experiment, labels, budgets, range(seeds), secure=budget is not None)
    check_cells(cells, job.problem)
    kept = kept_cells(cells, out / "runs")
    cost = forecast(experiment.data, costs_of([cell for cell in cells if cell not in kept]))
    if cost is not None:
        print(f"{len(cells) - len(kept)} runs. {forecast_sentence(cost)}", file=sys.stderr)
    with progress_bar(job.problem.name, len(cells), hidden=quiet or as_json) as advance:
        results = run_cells(cells, out / "runs", workers=workers or os.cpu_count() or 1, done=advance)
    measure = next(iter(measures(job.problem.kind)))
    rows = summarise(results, measure)
    record = comparison_record(job.problem.name, measure, rows, results)
    figure = drawn(
        lambda path: draw_comparison(rows, measure, job.problem.name, path), out / "comparison.png"
    )
    write_json(out / COMPARISON_FILE, plain(record))
    if as_json:
        print_json({**record, "figure": None if figure is None else str(figure), "budget": cost})
        return
    print_comparison(rows, measure, labels[0])
    console().print(f"Written: {', '.join(str(path) for path in (out / COMPARISON_FILE, figure) if path)}")


def print_comparison(rows: Sequence[Row], measure: str, first: str) -> None:
    """Show a comparison as a table."""
    from tacit.plotting import measure_name

    names = [name for name in rows[0].measures if name != "loss"]
    table = Table(
        "method", "ε", *[measure_name(name) for name in names], f"{measure_name(measure)} − {first}"
    )
    for row in rows:
        share = "" if row.active == row.coordinates else f" ({row.active / row.coordinates:.0%} active)"
        difference = (
            "" if row.difference is None else f"{row.difference.mean:+.4f}\n± {row.difference.deviation:.4f}"
        )
        epsilon = "∞" if math.isinf(row.epsilon) else f"{row.epsilon:g}"
        table.add_row(row.method + share, epsilon, *[_spread(row, name) for name in names], difference)
    console().print(table)
    console().print(
        f"{rows[0].seeds} seeds; ± one standard deviation over seeds, for differences the standard error of "
        "their mean. Seeded noise: not for release.",
    )


def _spread(row: Row, name: str) -> str:
    spread = row.measures[name]
    return f"{spread.mean:.4f}" + (f"\n± {spread.deviation:.4f}" if math.isfinite(spread.deviation) else "")
