"""``tacit certificate``: show a run's certificate, sign it, or make a key to sign with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.certificate import (
    CERTIFICATE_FILE,
    SIGNATURE_FILE,
    certificate_page,
    load_certificate,
    make_key,
    sign,
)
from tacit.cli.output import console, examples
from tacit.errors import ArgumentError, FileError

EXAMPLE = examples(
    "tacit certificate runs/nhanes",
    "tacit certificate --new-key lab.key",
    "tacit certificate runs/nhanes --sign lab.key",
)


def certificate(
    run: Annotated[
        Path | None, typer.Argument(help="Directory of a finished run.", show_default=False)
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--sign", help="Private key (Ed25519, PEM) to sign with.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option("--new-key", help="Make a private key here, and its public key beside it as .pub."),
    ] = None,
) -> None:
    """Show the certificate of a run, or sign it for people who do not hold the run directory.

    A signature binds the certificate, the ledger, the plan, the checkpoint and the model as they are now. A run that
    does not verify is not signed. Others check it with tacit verify RUN --trust KEY.pub.
    """
    if (run is None) == (new_key is None) or (new_key is not None and key is not None):
        raise ArgumentError("Give a run directory, to show or to sign, or --new-key alone.")
    if new_key is not None:
        public = make_key(new_key)
        console().print(f"Private key: {new_key} (keep it to yourself)\nPublic key: {public}")
        return
    assert run is not None
    if not run.is_dir():
        raise FileError(f"There is no run directory {run}.")
    if key is None:
        print(certificate_page(load_certificate(run / CERTIFICATE_FILE)), end="")
        return
    sign(run, key)
    console().print(f"Signed: {run / SIGNATURE_FILE}")
