"""The ``tacit`` command: assembles the commands and turns errors into one sentence."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from tacit.errors import TacitError
from tacit.name_lists import spelled
from tacit.version import __version__

# Newer versions of typer bring their own copy of click; this is the base of its errors either way.
_UsageError: type[Any] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

COMMANDS = {
    "plan": ("plan", "Plan a run: its phases, their noise, and the ε they cost. Needs no data."),
    "train": (
        "train",
        "Train a model with differential privacy and write model, ledger and certificate to a run directory.",
    ),
    "finetune": (
        "finetune",
        "Fine-tune a pretrained network with differential privacy: by default, its last layer.",
    ),
    "resume": ("train", "Continue a run after Ctrl-C, a crash or a power cut, from its directory alone."),
    "compare": ("compare", "Compare methods, pair by pair over seeds, and draw the result."),
    "diagnose": (
        "diagnose",
        "Show a run's energy curve, its active coordinates by layer, its ε over steps, and what a table's columns add.",
    ),
    "verify": (
        "verify",
        "Check a run or a bundle: recount ε independently and compare all files. Exit code 1 if it fails.",
    ),
    "certificate": (
        "verify",
        "Show the certificate of a run, or sign it for people who do not hold the run directory.",
    ),
    "audit": (
        "audit",
        "Measure ε from below: can one tell from what is released which examples were there?",
    ),
    "report": (
        "report",
        "Write one HTML file on runs: certificate, ε over steps, figures, coordinates, predictions.",
    ),
    "predict": (
        "predict",
        "Predict for new data with a trained model: one row of answers per row, in the same order.",
    ),
    "export": ("export", "Write the model of a run as one file to share."),
    "demo": (
        "demo",
        "Train a diabetes predictor on NHANES at ε = 3 and δ = 1e-5, against DP-SGD and no privacy.",
    ),
    "data": ("data", "Data sets and schemas."),
    "budget": ("budget", "A privacy budget for a data set, over all runs on it."),
    "fed": (
        "fed",
        "Federated training: sites with record-level privacy, or local differential privacy (FedSel).",
    ),
    "site": (
        "site",
        "One site of a federated training: its records stay with it, and it adds its own noise.",
    ),
}
"""The commands: the module of each, and what the list of all says of it, which is how its own help begins.

A module has a group of commands as ``app``, or for each command a function and its examples.
"""


class _Loading(Mapping[str, Any]):
    """All commands by name. Each is loaded when it is asked for: most modules take longer to load than to answer."""

    def __getitem__(self, name: str) -> Any:
        built = typer.Typer()
        if name not in COMMANDS:
            built.add_typer(_others()[name].load(), name=name)
        else:
            module = import_module(f"tacit.cli.{COMMANDS[name][0]}")
            if hasattr(module, "app"):
                built.add_typer(module.app, name=name)
            else:
                built.command(epilog=getattr(module, f"{name.upper()}_EXAMPLE"))(getattr(module, name))
        return get_group(built).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*COMMANDS, *_others()])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _others() -> dict[str, EntryPoint]:
    """Commands of other packages."""
    return {command.name: command for command in entry_points(group="tacit.commands")}


class _Commands(TyperGroup):
    """A group that loads no command for the list of all."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Loading()  # type: ignore[assignment]

    def invoke(self, ctx: Any) -> Any:
        """As every group; Ctrl-C is passed on as an abort, since typer would end at it without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        said = {name: sentence for name, (_, sentence) in COMMANDS.items()}
        said |= {name: command.load().info.help for name, command in _others().items()}
        listed = copy.copy(self)
        listed.commands = {name: TyperCommand(name, help=sentence) for name, sentence in said.items()}
        super(_Commands, listed).format_help(ctx, formatter)


app = typer.Typer(
    cls=_Commands,
    help="Differentially private training: exact, crash-safe, verifiable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def tacit(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Differentially private training: exact, crash-safe, verifiable."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 fine, 1 not verified or not finished, 2 bad input, 130 interrupted.

    Whatever the user can fix is one sentence on stderr.
    """
    try:
        code = app(arguments, prog_name="tacit", standalone_mode=False)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            raise SystemExit(2) from None
        _fail(_usage(error))
    except TacitError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone; give the interpreter nothing more to flush there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _fail(f"{error.filename or 'The system'}: {error.strerror or error}.")
    except (KeyboardInterrupt, typer.Abort):
        print("tacit: Interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see {context.command_path} --help." if context is not None else f"{message}."


def _fail(sentence: str) -> NoReturn:
    print(f"tacit: {spelled(' '.join(sentence.split()))}", file=sys.stderr)
    raise SystemExit(2) from None
