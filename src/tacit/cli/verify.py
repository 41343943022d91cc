"""``tacit verify``: recount a run's ε from its ledger and compare everything that its files say."""

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

EXAMPLE = examples(
    "tacit verify runs/nhanes",
    "tacit verify runs/nhanes --trust lab.key.pub",
    "tacit verify runs/nhanes --json",
)


def verify(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    trust: Annotated[
        Path | None,
        typer.Option("--trust", help="Public key: fail unless the certificate is signed with it."),
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option("--witness", help="The run's witness, if it is not where the run was started with."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a run: recount ε with an independent accountant and compare all files. Exit code 1 if it fails.

    RUN is a run directory. Plan, ledger, checkpoint, model, certificate and figures must agree; every contradiction is
    named. Nothing is changed, and the data is not needed.
    """
    if not run.is_dir():
        raise FileError(f"There is no run directory {run}.")
    verdict = verify_run(run, trust=trust, witness=witness)
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
        if verdict.agrees and verdict.unchecked:
            console().print("\nThis check does not show:")
            for sentence in verdict.unchecked:
                console().print(f"  - {sentence}")
    if not verdict.agrees:
        raise typer.Exit(1)
