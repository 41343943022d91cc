"""``tacit fed``: federated SGD under local differential privacy."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.federated.check import CheckReport, check_mechanism

app = typer.Typer(help="Federated SGD under local differential privacy (FedSel).", no_args_is_help=True)

Select = Annotated[
    str, typer.Option("--select", help="exp, pe, pe-paper, ps, random, or topk (not private).")
]


@app.command()
def check(
    select: Select = "ps",
    d: Annotated[int, typer.Option("--d", help="Number of coordinates.")] = 100,
    k: Annotated[int, typer.Option("--k", help="How many coordinates count as large.")] = 10,
    epsilon1: Annotated[float, typer.Option("--epsilon1", help="ε claimed for the selection.")] = 1.0,
    perturb: Annotated[
        str | None, typer.Option("--perturb", help="Also perturb the value: pm, hm, duchi or laplace.")
    ] = None,
    epsilon2: Annotated[float | None, typer.Option("--epsilon2", help="ε claimed for the value.")] = None,
    samples: Annotated[int, typer.Option("--samples", help="Draws per input; 0 skips the test.")] = 200_000,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the bounds.")] = 0.999,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute the exact ε of a local mechanism and test its samplers; exit code 1 if the claim fails."""
    report = check_mechanism(
        select, d, k, epsilon1, perturb, epsilon2, samples=samples, confidence=confidence, seed=seed
    )
    if as_json:
        print(json.dumps(_finite(dataclasses.asdict(report)), indent=2))
    else:
        Console().print(_check_table(report))
    sampled_above = report.sampled is not None and report.sampled.lower > report.claimed_epsilon
    if not report.holds or sampled_above:
        raise typer.Exit(1)


def _check_table(report: CheckReport) -> Table:
    name = report.selection if report.perturbation is None else f"{report.selection} + {report.perturbation}"
    table = Table("figure", "value", title=f"{name}, d={report.d}, k={report.k}")
    table.add_row("claimed ε", f"{report.claimed_epsilon:.6f}")
    table.add_row("exact ε of the selection", f"{report.exact_selection_epsilon:.6f}")
    if report.perturbation is not None:
        table.add_row("exact ε of the value", f"{report.exact_perturbation_epsilon:.6f}")
    table.add_row("exact ε", f"{report.exact_epsilon:.6f}")
    if report.sampled is not None:
        bounds = f"{report.sampled.lower:.4f} … {report.sampled.upper:.4f}"
        table.add_row(f"ε seen in samples ({report.sampled.confidence:g} confidence)", bounds)
    table.add_row("the claim", "holds" if report.holds else "DOES NOT HOLD")
    return table


def _finite(value: Any) -> Any:
    """Return ``value`` with infinite numbers as the words JSON has no numbers for."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
