"""The ``tacit`` command: assembles the commands and turns Tacit's errors into one sentence."""

from __future__ import annotations

import sys

import typer

from tacit.cli import fed, reproduce
from tacit.errors import TacitError

app = typer.Typer(
    help="Coordinate-sparse differentially private training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(fed.app, name="fed")
app.add_typer(reproduce.app, name="reproduce")


def main() -> None:
    """Run the command line; an error that Tacit raises is one sentence on stderr and exit code 2."""
    try:
        app()
    except TacitError as error:
        print(f"tacit: {error}", file=sys.stderr)
        raise SystemExit(2) from None
