"""``tacit compare``: several methods, budgets and seeds on one task; table, figure, JSON."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tacit.cli import options
from tacit.cli.describe import described
from tacit.cli.output import console, drawn, examples, plain, print_json
from tacit.errors import ArgumentError

if TYPE_CHECKING:
    from tacit.jobs.summary import Row

EXAMPLE = examples(
    "tacit compare nhanes --methods dp-sgd,tp-topk,no-noise --epsilons 1,3 --seeds 5 --out comparison",
    "tacit compare customers.csv --target churn --methods dp-sgd,tp-topk:0.2,tp-topk:auto",
)


def compare(
    source: options.Source = None,
    config: options.ConfigFile = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods by comma, with an active ratio as in tp-topk:0.4.")
    ] = "dp-sgd,tp-topk,no-noise",
    epsilons: Annotated[str, typer.Option("--epsilons", help="Budgets by comma.")] = "3",
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds, from 0.")] = 5,
    target: options.Target = None,
    schema: options.SchemaFile = None,
    prevalence: options.Prevalence = None,
    data_dir: options.DataDir = None,
    model: options.Model = None,
    active_ratio: options.ActiveRatio = None,
    delta: options.Delta = None,
    batch_size: options.BatchSize = None,
    epochs: options.Epochs = None,
    clip_norm: options.ClipNorm = None,
    learning_rate: options.LearningRate = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for results; the same command again goes on from there.")
    ] = Path("comparison"),
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes. (default: one per core)")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods, pair by pair over seeds, and draw the result.

    SOURCE is as for tacit train. The same command again goes on where it was interrupted.

    Every run has seeded noise and is not for release. Choosing a method by this on private data is not
    covered by ε: compare on public data, or count every run.
    """
    changes: dict[str, dict[str, Any]] = {
        "data": {
            "source": source,
            "target": target,
            "schema": schema,
            "prevalence": prevalence,
            "data_dir": None if data_dir is None else str(data_dir),
        },
        "model": {"name": model},
        "method": {"active_ratio": options.ratio(active_ratio)},
        "privacy": {"delta": delta},
        "training": {
            "batch_size": batch_size,
            "epochs": epochs,
            "clip_norm": options.one_or_more("--clip-norm", clip_norm),
            "learning_rate": learning_rate,
        },
    }
    if seeds < 1:
        raise ArgumentError(f"--seeds must be at least 1, got {seeds}.")
    budgets = options.numbers("--epsilons", epsilons) or ()
    labels = [label.strip() for label in methods.split(",") if label.strip()]
    experiment = described(config, changes)
    options.refuse_several_processes("compare")
    from tacit.files import write_json
    from tacit.jobs.comparison import cells_of, check_cells, run_cells
    from tacit.jobs.figures import draw_comparison
    from tacit.jobs.held_out import measures
    from tacit.jobs.run import prepare
    from tacit.jobs.summary import COMPARISON_FILE, comparison_record, summarise

    # Loads the data once here, so that a mistake in it is one sentence and not one per process.
    prepared = prepare(experiment)
    experiment = dataclasses.replace(experiment, data=prepared.experiment.data)
    cells = cells_of(experiment, labels, budgets, range(seeds))
    check_cells(cells, prepared.problem)
    screen = Console(stderr=True)
    hidden = quiet or as_json or not screen.is_terminal
    with Progress(console=screen, transient=True, disable=hidden) as progress:
        bar = progress.add_task(prepared.problem.name, total=len(cells))
        results = run_cells(
            cells,
            out / "runs",
            workers=workers or os.cpu_count() or 1,
            done=lambda: progress.advance(bar),
        )
    measure = next(iter(measures(prepared.problem.kind)))
    rows = summarise(results, measure)
    record = comparison_record(prepared.problem.name, measure, rows, results)
    figure = drawn(
        lambda path: draw_comparison(rows, measure, prepared.problem.name, path), out / "comparison.png"
    )
    write_json(out / COMPARISON_FILE, plain(record))
    if as_json:
        print_json({**record, "figure": None if figure is None else str(figure)})
        return
    print_comparison(rows, measure, labels[0])
    console().print(f"Written: {', '.join(str(path) for path in (out / COMPARISON_FILE, figure) if path)}")


def print_comparison(rows: Sequence[Row], measure: str, first: str) -> None:
    """Show a comparison as a table."""
    from tacit.figures import measure_name

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
