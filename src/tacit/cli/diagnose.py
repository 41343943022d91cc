"""``tacit diagnose``: why a run kept the coordinates it kept, and where its ε went."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, drawn, examples, print_json, sparkline
from tacit.errors import ArgumentError
from tacit.runs.layout import DIAGNOSIS_FIGURE, PLAN_FILE

if TYPE_CHECKING:
    from tacit.jobs.diagnosis import Diagnosis
    from tacit.jobs.explanation import ColumnShape, Explanation

_COLUMNS = 20
DIAGNOSE_EXAMPLE = examples(
    "tacit diagnose runs/diabetes", "tacit diagnose nhanes --epsilon 1 --out runs/look"
)


@options.job_options(
    options.offer(
        "data", but=("source", "text", "buckets", "pairs", "words", "task", "tokenizer", "length", "public")
    ),
    options.offer("model", only=("name",)),
    options.offer("privacy", only=("epsilon", "delta")),
    options.offer("training", only=("batch_size", "epochs", "clip_norm", "learning_rate", "seed")),
)
def diagnose(
    settings: options.Settings,
    run: Annotated[
        str, typer.Argument(help="A run directory, or data to train on first.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Run directory for data that is trained on first.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Where to draw it. (default: RUN/diagnosis.png)")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a run's energy curve, its active coordinates by layer, its ε over steps, and what a table's columns add.

    RUN is a run directory. Reads released values only, spends nothing. Given data instead of a run, it first
    trains TP-TopK with an automatic active ratio, as tacit train does, and that run spends its ε.
    """
    run_dir = Path(run)
    if (run_dir / PLAN_FILE).exists():
        given = [key for section in settings.values() for key, value in section.items() if value is not None]
        if given or out is not None:
            raise ArgumentError(
                f"{run} is a run; {(given or ['out'])[0]} is for data that is trained on first."
            )
    else:
        settings["data"]["source"] = run
        experiment = options.experiment_from(settings)
        from tacit.jobs.run import run_job

        outcome = run_job(experiment, out, command="diagnose", progress=not (quiet or as_json))
        assert outcome.run_dir is not None
        run_dir = outcome.run_dir
        if not outcome.result.finished:
            console().print(f"Stopped; tacit resume {run_dir} continues, then diagnose {run_dir}.")
            raise typer.Exit(1)
    from tacit.jobs.diagnosis import diagnose as read
    from tacit.jobs.plots import draw_diagnosis

    diagnosis = read(run_dir)
    place = drawn(lambda path: draw_diagnosis(diagnosis, path), figure or run_dir / DIAGNOSIS_FIGURE)
    if as_json:
        print_json({**dataclasses.asdict(diagnosis), "figure": None if place is None else str(place)})
    else:
        print_diagnosis(diagnosis)
        if place is not None:
            console().print(f"Figure: {place}")


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Show a diagnosis as text."""
    screen = console()
    screen.print(
        f"{diagnosis.name}: {diagnosis.method}, {diagnosis.active:,} of {diagnosis.coordinates:,} "
        "coordinates active"
    )
    for phase, reason in diagnosis.selections.items():
        screen.print(f"  {phase}: {reason}")
    energy = diagnosis.energy
    if energy is not None:
        even = [
            energy.captured[min(len(energy.counts) - 1, _place(energy.counts, i))]
            for i in _grid(energy.counts)
        ]
        screen.print(f"energy captured by k, from 0 to all  {sparkline(even)}")
        shown = "none below all" if energy.break_even is None else f"k = {energy.break_even:,}"
        screen.print(f"one-step break-even with ν₂² = {energy.noise_variance:.3g}: {shown}")
    else:
        screen.print("No energy curve: only runs with active_ratio auto keep what it needs.")
    screen.print(f"ε over releases, up to {diagnosis.epsilons[-1]:.4g}  {sparkline(diagnosis.epsilons)}")
    table = Table("parameter", "active", "of", "share", "")
    for layer in diagnosis.layers:
        share = layer.active / layer.coordinates
        table.add_row(
            layer.name, f"{layer.active:,}", f"{layer.coordinates:,}", f"{share:.1%}", "█" * round(20 * share)
        )
    screen.print(table)
    if diagnosis.explanation is not None:
        _print_columns(diagnosis.explanation)


def _print_columns(explanation: Explanation) -> None:
    """The most important columns by name: what they add to the answer at most, and how much of it may be noise."""
    several = len(explanation.outputs) > 1
    table = Table("column", "importance", "noise", "", "lowest", "highest")
    most = max((shape.importance for shape in explanation.columns), default=0.0) or 1.0
    for shape in explanation.columns[:_COLUMNS]:
        ends = ("", "") if several or not shape.points else extremes(shape)
        table.add_row(
            shape.column,
            f"{shape.importance:.3g}",
            "?" if shape.noise is None else f"{shape.noise:.3g}",
            "█" * round(20 * shape.importance / most),
            *ends,
        )
    screen = console()
    screen.print(f"What columns add to the {explanation.answer}, each value of a column counting alike:")
    screen.print(table)
    if len(explanation.columns) > _COLUMNS:
        screen.print(f"… and {len(explanation.columns) - _COLUMNS:,} more columns; --json has all.")


def extremes(shape: ColumnShape) -> tuple[str, str]:
    """The points of the lowest and the highest effect, in words, each with its effect."""
    effects = shape.effects[0]
    order = sorted(range(len(effects)), key=effects.__getitem__)
    low, high = (
        f"{shape.points[at]:.4g}" if isinstance(shape.points[at], float) else str(shape.points[at])
        for at in (order[0], order[-1])
    )
    return f"{low}: {effects[order[0]]:+.2f}", f"{high}: {effects[order[-1]]:+.2f}"


def _grid(counts: tuple[int, ...]) -> list[float]:
    return [counts[-1] * i / 47 for i in range(48)]


def _place(counts: tuple[int, ...], at: float) -> int:
    return next((place for place, count in enumerate(counts) if count >= at), len(counts) - 1)
