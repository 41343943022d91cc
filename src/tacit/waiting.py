"""What takes long says how far it is: on standard error, where somebody asked to see progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
_shown: ContextVar[bool] = ContextVar("shown", default=False)


@contextlib.contextmanager
def progress_shown(shown: bool = True) -> Iterator[None]:
    """A context in which long computations tell how far they are, or keep silent."""
    before = _shown.set(shown)
    try:
        yield
    finally:
        _shown.reset(before)


def awaited(items: Iterable[Item], total: int | None, what: str) -> Iterator[Item]:
    """The ``items``, with a bar that says how far ``what`` is; in a log, which has no bars, a line at the start.

    Where nobody can say how far it is (``total`` is ``None``) the bar moves and counts the seconds.
    """
    if not _shown.get():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} ...", highlight=False, soft_wrap=True)
    columns = Progress.get_default_columns()
    if total is None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)
