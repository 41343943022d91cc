"""``tacit audit``: an empirical lower bound on ε beside the claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli import options
from tacit.cli.output import console, drawn, examples, print_json
from tacit.errors import ArgumentError, FileError
from tacit.plan import load_plan
from tacit.runs.layout import PLAN_FILE

if TYPE_CHECKING:
    from tacit.audit import Audit, Effort

AUDIT_EXAMPLE = examples(
    "tacit audit --quick",
    "tacit audit runs/nhanes",
    "tacit audit runs/nhanes --data 500",
    "tacit audit plan.json --out audits/mine --json",
)


def audit(
    source: Annotated[
        Path | None,
        typer.Argument(help="A run directory or a plan file; without it, every shipped configuration."),
    ] = None,
    data: Annotated[
        int | None,
        typer.Option("--data", help="Train the run again on its own data with this many canaries."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer trials: looser bounds, seconds.")] = False,
    canaries: Annotated[int | None, typer.Option("--canaries", help="Gradient canaries per run.")] = None,
    releases: Annotated[int | None, typer.Option("--releases", help="Releases per phase.")] = None,
    runs: Annotated[int | None, typer.Option("--runs", help="Repetitions of the whole run.")] = None,
    confidence: Annotated[
        float | None, typer.Option("--confidence", help="Of each lower bound. (default: 0.999)")
    ] = None,
    seed: options.Seed = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for audit.json and audit.png. (default: the run directory)"),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure ε from below: can one tell from what is released which examples were there?

    Canaries, worst-case examples that take part by a coin, go through the sampling, clipping, noise and
    ledger of real training; the audit guesses which took part and turns the right guesses into a lower
    bound on ε. Exit code 1 if one is above the claim: then something is broken. No data leaves the machine,
    and only --data reads any.
    """
    from tacit.audit import QUICK, Effort

    usual = QUICK if quick else Effort()
    effort = Effort(
        canaries=usual.canaries if canaries is None else canaries,
        releases=usual.releases if releases is None else releases,
        runs=usual.runs if runs is None else runs,
        confidence=usual.confidence if confidence is None else confidence,
    )
    found = _audit(source, data, effort, seed, Console(stderr=True, quiet=quiet or as_json))
    place = out if out is not None else source if source is not None and source.is_dir() else None
    if place is not None:
        from tacit.audit import write_audit
        from tacit.audit.record import FIGURE_FILE

        drawn(lambda path: write_audit(path.parent, found), place / FIGURE_FILE)
    if as_json:
        from tacit.audit import audit_record

        print_json(audit_record(found))
    else:
        _print(found)
    if not found.holds:
        raise typer.Exit(1)


def _audit(source: Path | None, data: int | None, effort: Effort, seed: int | None, screen: Console) -> Audit:
    from tacit.audit import Audit, audit_plan
    from tacit.audit.shipped import audit_shipped

    def done(part: str) -> None:
        screen.print(f"audited: {part}", style="dim", highlight=False)

    if data is not None and (source is None or not source.is_dir()):
        raise ArgumentError("--data needs a run directory: it trains that run again on its own data.")
    if source is None:
        if seed is not None:
            raise ArgumentError(
                "Every shipped configuration is audited with and without a seed; leave --seed."
            )
        return audit_shipped(effort, done)
    if not source.exists():
        raise FileError(f"There is no run directory or plan file {source}.")
    plan = load_plan(source / PLAN_FILE if source.is_dir() else source)
    findings = audit_plan(plan, effort=effort, seed=seed, done=done)
    if data is not None:
        from tacit.jobs.audit import audit_data
        from tacit.jobs.run import reload

        experiment, problem = reload(source.absolute())
        found = audit_data(experiment, problem, canaries=data, confidence=effort.confidence, seed=seed)
        findings = (*findings, found)
        done("data")
    return Audit(str(source), findings)


def _print(found: Audit) -> None:
    screen = console()
    if found.findings:
        table = Table("audited", "trials", "right guesses", "claimed ε", "lower bound", "noise as if times")
        for finding in found.findings:
            table.add_row(
                f"{finding.kind} {finding.name}",
                f"{finding.trials:,}",
                f"{finding.right:,} of {finding.guesses:,}",
                f"{finding.epsilon_claimed:.4g}",
                f"{finding.epsilon_lower:.4g}",
                f"{finding.noise_scale:.3g}",
                style=None if finding.holds else "bold red",
            )
        screen.print(table)
    if found.local:
        table = Table("local mechanism", "d, k", "claimed ε", "exact ε", "lower bound from samples")
        for local in found.local:
            table.add_row(
                f"{local.selection}, {local.perturbation}",
                f"{local.d}, {local.k}",
                f"{local.epsilon_claimed:.4g}",
                f"{local.epsilon_exact:.4g}",
                f"{local.epsilon_lower:.4g}",
                style=None if local.holds else "bold red",
            )
        screen.print(table)
    confidence = {finding.confidence for finding in found.findings}
    screen.print(f"Confidence of each lower bound: {', '.join(f'{c:g}' for c in sorted(confidence))}.")
    screen.print(found.verdict, style=None if found.holds else "bold red")
