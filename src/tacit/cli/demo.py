"""``tacit demo``: a private diabetes predictor on the health survey that comes with Tacit."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, examples, plain, print_json, progress_bar
from tacit.cli.train import print_outcome
from tacit.errors import ArgumentError

if TYPE_CHECKING:
    from tacit.jobs.demo import Demonstration

DEMO_EXAMPLE = examples("tacit demo", "tacit demo --pairs 10 --out runs/mine --json")


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="Folder. (default: runs/demo-N)")] = None,
    pairs: Annotated[int, typer.Option("--pairs", help="Seeded pairs of TP-TopK and DP-SGD.")] = 5,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a diabetes predictor on NHANES at ε = 3 and δ = 1e-5, against DP-SGD and no privacy.

    The certified run draws cryptographic noise. The data comes with Tacit; no network is needed.
    """
    if pairs < 2:
        raise ArgumentError(f"--pairs must be at least 2 to tell a difference from noise, got {pairs}.")
    from tacit.jobs.demo import cells, demonstrate
    from tacit.jobs.run import free_directory, join_processes

    join_processes("demo")
    place = (out or free_directory("demo")).absolute()
    hidden = quiet or as_json
    if not hidden:
        Console(stderr=True).print(
            "NHANES 2017-2018: has a doctor said that this person has diabetes? A logistic regression on 157 "
            "public-codebook columns of 6,677 people, measured on 1,685 others."
        )
    with progress_bar("runs", len(cells(pairs)), hidden=hidden) as advance:
        found = demonstrate(
            place, pairs=pairs, workers=workers or os.cpu_count() or 1, progress=False, done=advance
        )
    if not found.certified["finished"]:
        print_outcome(found.certified)
        raise typer.Exit(1)
    page = _write_page(place, found)
    if as_json:
        print_json({**dataclasses.asdict(found), "verdict": found.verdict, "report": str(page)})
    else:
        print_demonstration(found)
        console().print(f"report       {page}")


def _write_page(place: Path, found: Demonstration) -> Path:
    """The comparison as a file, and a report on everything in the folder."""
    from tacit.files import write_json
    from tacit.jobs.demo import TP_TOPK
    from tacit.jobs.summary import COMPARISON_FILE, comparison_record, summarise
    from tacit.report import write_report

    runs = sorted(found.runs, key=lambda run: run.method != "DP-SGD")
    record = comparison_record(TP_TOPK.data.source, "auc", summarise(runs, "auc"), runs)
    write_json(place / "comparison" / COMPARISON_FILE, plain(record))
    write_report([place], place / "report.html")
    return place / "report.html"


def print_demonstration(found: Demonstration) -> None:
    """The table, the verdict, the certificate's statement, and where everything lies."""
    from tacit.jobs.demo import MEASURES
    from tacit.plotting import measure_name

    record: dict[str, Any] = found.certified
    table = Table("held-out people", *[measure_name(name) for name in MEASURES], "ε")
    certified = [f"{record['held_out'][name]:.3f}" for name in MEASURES]
    table.add_row(
        "TP-TopK, certified", *certified, f"{record['epsilon']:.3g}", style="bold", end_section=True
    )
    for method in dict.fromkeys(run.method for run in found.runs):
        runs = [run for run in found.runs if run.method == method]
        means = [sum(run.held_out[name] for run in runs) / len(runs) for name in MEASURES]
        label = f"{method}, mean of {len(runs)}" if len(runs) > 1 else method
        epsilon = runs[0].epsilon
        table.add_row(
            label, *[f"{mean:.3f}" for mean in means], "∞" if math.isinf(epsilon) else f"{epsilon:g}"
        )
    screen = console()
    screen.print(table)
    screen.print(found.verdict)
    screen.print(record["selections"]["sparse"])
    screen.print(
        "A person counts as positive above the published prevalence of 8.2 % (CDC, 2020), a threshold that "
        "no row has influenced.\n"
    )
    screen.print(record["statement"])
    screen.print(f"\ncertificate  {record['certificate']}")
    screen.print(f"run          {record['run']}   (tacit verify, tacit diagnose)")
