"""How far a long experiment has come, and how long it may still take."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_EVERY = 30.0


class Meter:
    """Counts finished runs: a bar with the time left on a terminal, a line now and then elsewhere."""

    def __init__(self, *, shown: bool = True) -> None:
        self._screen = Console(stderr=True, highlight=False)
        self._shown = shown
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._screen,
            disable=not shown or not self._screen.is_terminal,
        )
        self._started = self._said = time.monotonic()
        self._name, self._total, self._done, self._kept = "", 0, 0, 0

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, name: str, total: int) -> None:
        """A new group of ``total`` runs."""
        self._name, self._total, self._done, self._kept = name, total, 0, 0
        self._started = time.monotonic()
        self._task = self._bar.add_task(name, total=total)

    def done(self) -> None:
        """One run is finished, or was found finished."""
        self._done += 1
        self._bar.advance(self._task)
        now = time.monotonic()
        if now - self._started < 0.5:
            self._kept = self._done
        last = self._done == self._total
        if self._shown and not self._screen.is_terminal and (last or now - self._said > _EVERY):
            self._said = now
            self._screen.print(f"{self._name}: {self._done} of {self._total} runs, {self._left(now)}")

    def _left(self, now: float) -> str:
        """Runs that were found finished took no time and say nothing about the others."""
        fresh = self._done - self._kept
        if self._done == self._total:
            return "done"
        if not fresh:
            return "time left unknown"
        minutes = (now - self._started) / fresh * (self._total - self._done) / 60
        return f"about {minutes:.0f} minutes left" if minutes >= 1 else "less than a minute left"
