"""Methods tuned alike and then measured: learning rates on a part of the training data, figures on the test data.

Every contestant tries as many learning rates as the others, with one seed, on the validation part. The best one is
used for all seeds, and each of those runs is measured once. The tuning runs are not covered by any run's ε."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.jobs.comparison import Cell, CellResult, run_cells
from tacit.jobs.settings import Experiment

VALIDATION = 0.1
TUNING_SEED = 1_000


@dataclass(frozen=True)
class Contestant:
    """A method on a task at an ε. ``rates`` are the learning rates it may choose from."""

    label: str
    experiment: Experiment
    rates: tuple[float, ...]

    @property
    def epsilon(self) -> float:
        """The promised ε."""
        return self.experiment.privacy.epsilon

    def cell(self, rate: float, seed: int, *, tuning: bool) -> Cell:
        """The run with this learning rate and seed."""
        experiment = replace(
            self.experiment,
            data=replace(self.experiment.data, validation=VALIDATION if tuning else None),
            training=replace(self.experiment.training, learning_rate=rate, seed=seed),
        )
        label = f"{self.label} rate {rate:g}" + (" tuning" if tuning else "")
        return Cell(label, self.epsilon, seed, experiment)


@dataclass(frozen=True)
class Outcome:
    """What a contestant reached: the rate it chose, what each rate gave on the validation part, its final runs."""

    contestant: Contestant
    rate: float
    tuning: tuple[tuple[float, float], ...]
    runs: tuple[CellResult, ...]
    processor_seconds: float

    def values(self, measure: str) -> tuple[float, ...]:
        """``measure`` on the test data, one value per seed."""
        return tuple(run.held_out[measure] for run in self.runs)


def contest(
    name: str,
    contestants: Sequence[Contestant],
    measure: str,
    *,
    seeds: int,
    out: Path,
    workers: int,
    meter: Meter,
) -> list[Outcome]:
    """Tune and measure all contestants; runs that ``out`` already holds are not made again.

    The better rate is the one with the higher ``measure`` on the validation part, the smaller one in a tie. A
    contestant with one rate is not tuned.
    """
    trials = [
        [c.cell(rate, TUNING_SEED, tuning=True) for rate in sorted(c.rates)] if len(c.rates) > 1 else []
        for c in contestants
    ]
    found = _run(f"{name}: tuning", [cell for group in trials for cell in group], out, workers, meter)
    chosen = []
    for contestant, group in zip(contestants, trials, strict=True):
        scores = {_rate(cell): found[cell].held_out[measure] for cell in group}
        chosen.append(max(scores, key=lambda rate: _order(scores[rate])) if scores else contestant.rates[0])
    finals = [
        [c.cell(rate, seed, tuning=False) for seed in range(seeds)]
        for c, rate in zip(contestants, chosen, strict=True)
    ]
    results = _run(f"{name}: measuring", [cell for group in finals for cell in group], out, workers, meter)
    return [
        Outcome(
            contestant,
            rate,
            tuple((_rate(cell), found[cell].held_out[measure]) for cell in group),
            tuple(results[cell] for cell in final),
            sum(found[cell].processor_seconds for cell in group)
            + sum(results[cell].processor_seconds for cell in final),
        )
        for contestant, rate, group, final in zip(contestants, chosen, trials, finals, strict=True)
    ]


def _order(score: float) -> float:
    """A run that came to nothing is worse than any other."""
    return -math.inf if math.isnan(score) else score


def _rate(cell: Cell) -> float:
    rate = cell.experiment.training.learning_rate
    assert rate is not None
    return rate


def _run(name: str, cells: list[Cell], out: Path, workers: int, meter: Meter) -> dict[Cell, CellResult]:
    if not cells:
        return {}
    meter.begin(name, len(cells))
    return dict(zip(cells, run_cells(cells, out, workers=workers, done=meter.done), strict=True))


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
