"""What the commands share when they print: JSON without infinities, tables, small text graphs."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tacit.files import without_infinities
from tacit.name_lists import spelled

_BARS = "▁▂▃▄▅▆▇█"


def print_json(content: Any) -> None:
    """Print ``content`` as JSON; numbers that JSON does not know become null, an infinite epsilon "inf"."""
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    print("".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text))


def plain(content: Any) -> Any:
    """``content`` with nothing in it that JSON has no word for."""
    return without_infinities(
        content, word=lambda key, value: "inf" if key.startswith("epsilon") and value == math.inf else None
    )


@contextlib.contextmanager
def progress_bar(name: str, total: int, *, hidden: bool = False) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal, that is gone at the end; calling what it gives advances it."""
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=hidden or not screen.is_terminal) as progress:
        bar = progress.add_task(name, total=total)
        yield lambda: progress.advance(bar)


def print_figures(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of named figures."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


@contextlib.contextmanager
def as_comments() -> Iterator[None]:
    """Print what is printed meanwhile as lines of comment, so that the whole output stays valid TOML."""
    held = io.StringIO()
    with contextlib.redirect_stdout(held):
        yield
    for line in held.getvalue().splitlines():
        print(f"# {line}".rstrip())


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(spelled(text), **options)  # cells and titles of tables come here too


def console() -> Console:
    """A console that prints figures, names and paths as they are: it colours no numbers and obeys no [tags] in them."""
    return _Console(highlight=False, soft_wrap=False, markup=False, emoji=False)


def drawn(draw: Callable[[Path], None], path: Path) -> Path | None:
    """Draw to ``path`` and return it; without matplotlib say so and return nothing: results do not wait for it."""
    from tacit.plotting import FigureError

    try:
        draw(path)
    except FigureError as error:
        print(f"No {path.name}: {error}", file=sys.stderr)
        return None
    return path


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """``values`` as a row of at most ``width`` bars, the lowest at the bottom and the highest at the top."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    count = min(width, len(values))
    places = [round(i * (len(values) - 1) / max(1, count - 1)) for i in range(count)]
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    return "".join(
        _BARS[round((values[place] - low) / span * (len(_BARS) - 1))] if math.isfinite(values[place]) else " "
        for place in places
    )


def examples(*lines: str) -> str:
    """The closing paragraph of a command's help."""
    return "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])
