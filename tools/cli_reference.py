"""Write docs/reference/cli.md from the commands themselves.

python -m tools.cli_reference
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from typer.main import get_command

from tacit.cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_INTRODUCTION = """\
# Command line

Generated from the commands by `python -m tools.cli_reference`; a test keeps it up to date.

Every command has `--help`. Commands that print figures take `--json`. Exit codes: 0 success, 1 a run that does not
verify or is not finished, 2 bad input (one sentence on stderr says what to fix), 130 interrupted.
Shell completion: `tacit --install-completion`.
"""


def page() -> str:
    """The whole page."""
    root = get_command(app)
    context = click.Context(root, info_name="tacit")
    return "\n".join([_INTRODUCTION, *(text for text in _commands(root, context, "tacit"))]).rstrip() + "\n"


def _commands(command: click.Command, context: click.Context, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                inner = click.Context(below, parent=context, info_name=name)
                yield from _commands(below, inner, f"{path} {name}")
        return
    yield f"## {path}\n"
    yield _paragraphs(command.help or "")
    rows = [_row(parameter, context) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield "| option | | default |\n|---|---|---|"
        yield "\n".join(rows) + "\n"
    if command.epilog:
        lines = [line for line in command.epilog.split("\n\n") if not line.startswith("Example")]
        yield "```sh\n" + "\n".join(lines) + "\n```\n"


def _row(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        name = " / ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
        text = parameter.help or ""
    else:
        name, text = f"`{(parameter.name or '').upper()}`", getattr(parameter, "help", "") or ""
    text, _, stated = text.partition(" (default: ")
    default = stated.removesuffix(".").removesuffix(")") or (
        "required" if parameter.required else _default(parameter)
    )
    return f"| {name} | {text.replace('|', chr(92) + '|')} | {default} |"


def _default(parameter: click.Parameter) -> str:
    value = parameter.default
    if (
        value is None
        or isinstance(value, bool)
        or value == ""
        or not isinstance(value, str | int | float | Path)
    ):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Written to {PAGE}.")
