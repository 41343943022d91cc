"""``tacit verify``: recount a run's ε from its ledger and compare it with its certificate."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tacit.certificate import CERTIFICATE_FILE, load_certificate
from tacit.certificate import verify as verify_run
from tacit.cli import options
from tacit.cli.output import console, examples, print_json
from tacit.errors import FileError

EXAMPLE = examples("tacit verify runs/nhanes", "tacit verify runs/nhanes --json")


def verify(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """Check a run: recount ε from its ledger with an independent accountant. Exit code 1 if it fails.

    RUN is a run directory. Nothing is changed, and neither the data nor the model is needed.
    """
    if not run.is_dir():
        raise FileError(f"There is no run directory {run}.")
    verdict = verify_run(run)
    statement = load_certificate(run / CERTIFICATE_FILE).statement if verdict.agrees else None
    if as_json:
        print_json(
            {
                "run": str(run),
                "verified": verdict.agrees,
                **{key: value for key, value in dataclasses.asdict(verdict).items() if key != "agrees"},
                "statement": statement,
            }
        )
    else:
        console().print(str(verdict))
        if statement is not None:
            console().print(statement)
        elif not (run / CERTIFICATE_FILE).exists():
            console().print(f"The run is not finished; tacit resume {run} goes on with it.")
    if not verdict.agrees:
        raise typer.Exit(1)
