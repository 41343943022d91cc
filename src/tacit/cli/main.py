"""The ``tacit`` command: assembles the commands and turns errors into one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any, NoReturn

import typer

from tacit.cli import (
    audit,
    budget,
    compare,
    data,
    demo,
    diagnose,
    export,
    fed,
    finetune,
    plan,
    predict,
    report,
    site,
    train,
    verify,
)
from tacit.errors import TacitError
from tacit.version import __version__

# Newer versions of typer bring their own copy of click; this is the base of its errors either way.
_UsageError: type[Any] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
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


app.command(epilog=plan.EXAMPLE)(plan.plan)
app.command(epilog=train.TRAIN_EXAMPLE)(train.train)
app.command(epilog=finetune.EXAMPLE)(finetune.finetune)
app.command(epilog=train.RESUME_EXAMPLE)(train.resume)
app.command(epilog=compare.EXAMPLE)(compare.compare)
app.command(epilog=diagnose.EXAMPLE)(diagnose.diagnose)
app.command(epilog=verify.VERIFY_EXAMPLE)(verify.verify)
app.command(epilog=verify.CERTIFICATE_EXAMPLE)(verify.certificate)
app.command(epilog=audit.EXAMPLE)(audit.audit)
app.command(epilog=report.EXAMPLE)(report.report)
app.command(epilog=predict.EXAMPLE)(predict.predict)
app.command(epilog=export.EXAMPLE)(export.export)
app.command(epilog=demo.EXAMPLE)(demo.demo)
app.add_typer(data.app, name="data")
app.add_typer(budget.app, name="budget")
app.add_typer(fed.app, name="fed")
app.add_typer(site.app, name="site")
for _command in entry_points(group="tacit.commands"):
    app.add_typer(_command.load(), name=_command.name)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 fine, 1 not verified or not finished, 2 bad input, 130 interrupted.

    Whatever the user can mend is one sentence on stderr.
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
    print(f"tacit: {' '.join(sentence.split())}", file=sys.stderr)
    raise SystemExit(2) from None
