"""A whole run: steps with progress, figures, checkpoints, an orderly stop, and the certificate at the end."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from tacit.errors import ExampleError
from tacit.name_lists import spelled
from tacit.raw.sampling import dead_workers_named
from tacit.runs.metrics import MetricsLog
from tacit.warning import warn

if TYPE_CHECKING:
    from tacit.training.course import Step
    from tacit.training.trainer import Trainer

REPORTS = 20
"""How often, over a run that is shown or logged, ε is computed and held-out data measured."""

MEASURING_SECONDS, MEASURING_SHARE = 5.0, 0.1
"""On the way, held-out data is measured no more once that has taken so long, and so much of the time of the run."""


@dataclass(frozen=True)
class Result:
    """What came out of a run: released or held-out figures only.

    ``finished`` is false after an interruption; ``Trainer.resume`` continues from there.
    """

    finished: bool
    steps: int
    epsilon: float
    delta: float
    measured: dict[str, float]
    active: int
    dimension: int
    selections: dict[str, str]
    seconds: float
    run_dir: Path | None


def fit(trainer: Trainer, *, progress: bool = True) -> Result:
    """Take all steps that are left. Ctrl-C stops after the current step with a checkpoint; nothing is lost.

    However it ends, the run directory is given up, so that it can be resumed from here or elsewhere.
    """
    try:
        with dead_workers_named():
            return _fit(trainer, progress)
    except ExampleError:
        if trainer.run is not None and trainer.ranks.size == 1:
            trainer.save()  # of the steps before, which are whole: none of them is lost
        raise
    finally:
        trainer.close()


def _fit(trainer: Trainer, progress: bool) -> Result:
    started = saved = time.monotonic()
    measuring = 0.0
    total = trainer.total
    every = max(1, total // REPORTS)
    measured: dict[str, float] = {}
    log: MetricsLog | None = None
    stopped = False
    ranks = trainer.ranks
    shown = progress and ranks.rank == 0
    # Ranks measure together or not at all, whatever each of them was asked to show.
    seen = progress or trainer.run_dir is not None or ranks.size > 1
    trainer.charge_together()
    with _stop_on_interrupt() as interrupted, ProgressBar(total, trainer.done, shown=shown) as bar:
        phase = ""
        for step in trainer.steps():
            if log is None and trainer.run is not None:
                log = MetricsLog(trainer.run.path, done=step.number - 1)
            if step.phase.name != phase:
                phase = step.phase.name
                bar.say(f"{phase}: {step.selection.reason}")
            bar.step(step.number, phase)
            last = step.number == total
            if last or (seen and step.number % every == 0):
                now = time.monotonic()
                cheap = measuring <= max(MEASURING_SECONDS, MEASURING_SHARE * (now - started))
                # Measuring draws noise that is owed, too: see below.
                clocked = trainer.seed is None or not trainer.lazy
                fresh: dict[str, float] = {}
                if last or not clocked or ranks.any(cheap)[0]:
                    bar.step(step.number, f"{phase}, measuring")
                    measured = fresh = trainer.measure()
                    bar.step(step.number, phase)
                    measuring += time.monotonic() - now
                epsilon = trainer.epsilon
                bar.report(epsilon, trainer.support.size, fresh)
                if log is not None:
                    log.add(_row(step, epsilon, fresh, trainer.support.size, time.monotonic() - started))
            # A checkpoint draws noise that is owed: in a seeded run not by the clock, or it would not repeat itself.
            by_clock = trainer.seed is None or not trainer.lazy or step.number % every == 0
            # Steps that are charged are taken first: at most a few dozen short ones.
            here = not trainer.ahead
            asked, due = ranks.any(
                here and interrupted.is_set(),
                here and by_clock and time.monotonic() - saved > trainer.checkpoint_seconds,
            )
            stopped = asked and not last
            if last or stopped or due:
                trainer.save()
                saved = time.monotonic()
            if stopped:
                bar.say(f"Stopped after step {step.number} of {total}; resume continues from its checkpoint.")
                break
    if trainer.done == total and not measured and trainer.held_out is not None:
        measured = trainer.measure()
    if log is None and trainer.run is not None:
        log = MetricsLog(trainer.run.path, done=trainer.done)
    if log is not None:
        log.finish()
    result = Result(
        finished=trainer.done == total,
        steps=trainer.done,
        epsilon=trainer.epsilon,
        delta=trainer.plan.delta,
        measured=measured,
        active=trainer.support.size,
        dimension=trainer.support.dimension,
        selections=dict(trainer.selections),
        seconds=time.monotonic() - started,
        run_dir=trainer.run_dir,
    )
    _warn_of_divergence(trainer, measured)
    if result.finished:
        ranks.together(lambda: trainer.finish(measured))
    return result


def _warn_of_divergence(trainer: Trainer, measured: dict[str, float]) -> None:
    """Say so if what was learnt is no number: from released weights and held-out data alone."""
    if trainer.lazy or trainer.ranks.rank:
        return
    if not all(bool(p.detach().isfinite().all()) for p in trainer.model.parameters() if p.requires_grad):
        warn("The trained weights are not finite; train with a lower learning rate.")
    elif not math.isfinite(measured.get("loss", 0.0)):
        warn(
            "The loss on the held-out data is not finite: that data, or the model at its last weights, gives NaN or "
            "infinity; look for such values in the data, or lower the learning rate."
        )


def _row(
    step: Step, epsilon: float, measured: dict[str, float], active: int, seconds: float
) -> dict[str, object]:
    figures = {
        "epsilon": epsilon,
        "signal_to_noise": step.released.signal_to_noise,
        **{f"held_out_{name}": value for name, value in measured.items()},
    }
    return {
        "step": step.number,
        "phase": step.phase.name,
        "active": active,
        "seconds": round(seconds, 3),
        # JSON has no infinity: a run without noise has neither an epsilon nor a ratio to the noise.
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
    }


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C asks for an orderly stop; a second one interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


_WIDE = 120
"""Columns of a terminal in which there is room for a long bar."""


class FiguresColumn(TextColumn):
    """Figures in one line, of which the end is left out where a line has no room: steps and time stay readable.

    A column that may be wrapped is the first to become narrower.
    """

    def render(self, task: Task) -> Text:
        """The figures of a task."""
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class ProgressBar:
    """A bar on standard error: phase, step, ε so far, active coordinates, held-out figures, time left."""

    def __init__(self, steps: int, done: int, *, shown: bool) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.fields[phase]}"),
            BarColumn(bar_width=24 if console.width >= _WIDE else 8),
            MofNCompleteColumn(),
            FiguresColumn("{task.fields[figures]}", table_column=Column(no_wrap=False)),
            TimeRemainingColumn(),
            console=console,
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
            self._bar.console.print(spelled(sentence), highlight=False, markup=False, emoji=False)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
