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


def awaited(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The ``items``, with a bar that is ``what`` is done; in a log, which has no bars, a line at the start."""
    if not _shown.get():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} ...", highlight=False, soft_wrap=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)
