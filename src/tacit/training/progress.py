"""What a person watching a run sees."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """A bar on standard error: phase, step, ε so far, active coordinates, held-out figures, time left."""

    def __init__(self, steps: int, done: int, *, shown: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.fields[phase]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task("", total=steps, completed=done, phase="", figures="")

    def step(self, done: int, phase: str) -> None:
        """One more step is done."""
        self._bar.update(self._task, completed=done, phase=phase)

    def report(self, epsilon: float, active: int, measured: dict[str, float]) -> None:
        """Newer figures."""
        figures = [
            f"ε {epsilon:.3f}",
            f"{active:,} active",
            *(f"{name} {value:.4g}" for name, value in measured.items()),
        ]
        self._bar.update(self._task, figures=" · ".join(figures))

    def say(self, sentence: str) -> None:
        """One sentence above the bar."""
        if not self._bar.disable:
            self._bar.console.print(sentence, highlight=False)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
