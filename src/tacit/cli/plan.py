"""``tacit plan``: what a run would do and cost, before anything is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, examples, print_json
from tacit.errors import ArgumentError, check_count
from tacit.jobs.defaults import default_delta, plan_of, with_active_ratio
from tacit.plan import Plan, plan_to_record, save_plan
from tacit.plan.sources import source_from_record

PLAN_EXAMPLE = examples(
    "tacit plan --method tp-topk --epsilon 3 --delta 1e-5 --examples 50000 --batch-size 1000 --epochs 40 "
    "--active-ratio 0.4"
)


@options.job_options(
    options.offer("method"),
    options.offer("privacy"),
    options.offer("training", only=("batch_size", "epochs", "clip_norm"), required=("batch_size", "epochs")),
)
def plan(
    settings: options.Settings,
    examples: Annotated[
        int | None, typer.Option("--examples", help="Number of training examples, public.")
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(
            "--units", help="In its place: number of units of privacy that have several examples each."
        ),
    ] = None,
    coordinates: Annotated[
        int | None, typer.Option("--coordinates", help="Size d of a model, to show the noise energy.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also save the plan to this file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Plan a run: its phases, their noise, and the ε they cost. Needs no data.

    Without an active ratio, tp-topk chooses it during the run, from the warm-up.
    """
    given = examples if units is None else units
    if given is None or (examples is not None and units is not None):
        raise ArgumentError("Say --examples, or --units where a unit of privacy has several examples.")
    count = check_count("examples" if units is None else "units", given)
    experiment = options.experiment_from(settings)
    privacy = experiment.privacy
    made = plan_of(
        replace(
            experiment,
            method=with_active_ratio(experiment.method),
            privacy=replace(privacy, delta=default_delta(count) if privacy.delta is None else privacy.delta),
        ),
        count,
        grouped=units is not None,
    )
    record = plan_record(made, coordinates)
    if out is not None:
        save_plan(made, out)
    if as_json:
        print_json(record)
    else:
        print_plan(record)


def plan_record(plan: Plan, coordinates: int | None = None) -> dict[str, Any]:
    """The plan with the figures that follow from it: steps, sampling rate, ε after each phase."""
    record = plan_to_record(plan)
    record = {
        "method": plan.method,
        "epsilon": record["epsilon"],
        "delta": plan.delta,
        **{name: record[name] for name in ("examples", "batch_size", "accountant", "relation")},
        **({"grouped": True} if plan.grouped else {}),
        "sampling_rate": plan.sampling_rate,
        "steps": plan.steps,
        "epsilon_spent": plan.spent(),
        "phases": record["phases"],
    }
    levels = {phase.noise_multiplier for phase in plan.phases}
    taken = 0
    for phase, entry in zip(plan.phases, record["phases"], strict=True):
        taken += phase.steps
        entry["noise_deviation"] = phase.noise_deviation(plan.batch_size)
        # One accounting per phase is cheap for two phases, not for a phase per epoch.
        if len(levels) > 1 or len(plan.phases) == 1:
            entry["epsilon_after"] = plan.spent(taken)
    if coordinates is not None:
        chosen = [not phase.support.dense and phase.support.share is None for phase in plan.phases]
        energies = plan.noise_energy(coordinates, coordinates if any(chosen) else None)
        for entry, energy, open_ in zip(record["phases"], energies, chosen, strict=True):
            entry["noise_energy_dense"] = energy.dense
            entry["noise_energy"] = None if open_ else energy.sparse
    return record


def print_plan(record: dict[str, Any]) -> None:
    """Show the plan as a table; phases that differ only in name are shown once."""
    screen = console()
    screen.print(
        f"{record['method']}: ε = {record['epsilon']}, δ = {record['delta']:g}, {record['relation']}, "
        f"{record['accountant']} accountant (spends {record['epsilon_spent']:.6g})"
    )
    counted = "units" if record.get("grouped") else "examples"
    screen.print(
        f"{record['examples']:,} {counted}, batch {record['batch_size']:,}, sampling rate "
        f"{record['sampling_rate']:.4g}, {record['steps']:,} steps"
    )
    energies = "noise_energy" in record["phases"][0]
    after = any("epsilon_after" in phase for phase in record["phases"])
    header = ["phase", "steps", "noise σ", "clip C", "support"]
    header += (["ε after"] if after else []) + (["noise energy"] if energies else [])
    shown: list[list[str]] = []
    for phase in record["phases"]:
        row = [
            phase["name"],
            f"{phase['steps']:,}",
            f"{phase['noise_multiplier']:.5g}",
            f"{phase['clip_norm']:g}",
            source_from_record(phase["support"], "The support").words,
        ]
        row += [f"{phase['epsilon_after']:.4g}"] if after else []
        if energies:
            energy = phase["noise_energy"]
            row.append("depends on the model" if energy is None else f"{energy:.3g}")
        if shown and shown[-1][1:] == row[1:]:
            shown[-1][0] = f"{shown[-1][0].split(' .. ')[0]} .. {row[0]}"
        else:
            shown.append(row)
    table = Table(*header)
    for row in shown:
        table.add_row(*row)
    screen.print(table)
