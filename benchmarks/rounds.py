"""Interleaved rounds: each round gives every contender one turn, in a new random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.isolation import Failure

# A turn lasts about this long: short enough to interleave finely, long enough to time.
TURN_SECONDS = 0.25
OCCASIONAL_TURNS = 3
# With less of the processor than this, wall-clock times tell of other programs as much as of the step.
BUSY = 0.95


@dataclass(frozen=True)
class Schedule:
    """At least `rounds` rounds, and up to five times as many while they have taken less than `seconds`.

    A turn that had the processor too little is taken again, for up to `patience` seconds in all.
    """

    rounds: int
    seconds: float
    patience: float = 0.0

    def goes_on(self, done: int, elapsed: float) -> bool:
        """Whether another round follows."""
        return done < self.rounds or (done < 5 * self.rounds and elapsed < self.seconds)

    def occasional_rounds(self) -> set[int]:
        """The rounds in which the slow contenders take part: first, middle and last of the planned ones."""
        last = self.rounds - 1
        return {round(i * last / (OCCASIONAL_TURNS - 1)) for i in range(OCCASIONAL_TURNS)}


@dataclass(frozen=True)
class StepTime:
    """Seconds per step in one turn: on the wall clock, and on the processor summed over threads; and instructions."""

    wall: float
    cpu: float
    instructions: float | None = None

    @property
    def share(self) -> float:
        """How much of its time the step had the processor."""
        return self.cpu / self.wall


@dataclass
class Turns:
    """The time of a step of each contender in each round it took part in, and who failed on the way."""

    times: dict[str, dict[int, StepTime]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    repeated: int = 0


def steps_per_turn(step_seconds: float) -> int:
    """How many steps make a turn."""
    return max(1, min(50, round(TURN_SECONDS / max(step_seconds, 1e-6))))


def run_rounds(
    take_turn: Callable[[str, int], StepTime | Failure],
    step_seconds: dict[str, float],
    slow: Callable[[dict[str, float]], set[str]],
    schedule: Schedule,
    clock: Callable[[], float] = time.perf_counter,
) -> Turns:
    """Run the rounds; a contender that fails is left out from then on, and its earlier turns are dropped.

    ``slow`` says, of processor seconds of a step in the first round, who takes part in a few of the others only.
    """
    order = random.Random(0)
    turns = Turns({name: {} for name in step_seconds})
    started = clock()
    number = 0
    occasional: set[str] = set()
    patience = schedule.patience
    while schedule.goes_on(number, clock() - started):
        names = [
            name
            for name in step_seconds
            if name not in turns.failures
            and (name not in occasional or number in schedule.occasional_rounds())
        ]
        order.shuffle(names)
        for name in names:
            steps = steps_per_turn(step_seconds[name])
            answer = take_turn(name, steps)
            while isinstance(answer, StepTime) and answer.share < BUSY and patience > 0:
                before = clock()
                again = take_turn(name, steps)
                patience -= clock() - before
                turns.repeated += 1
                if isinstance(again, Failure) or again.share > answer.share:
                    answer = again
            if isinstance(answer, Failure):
                turns.failures[name] = answer
                del turns.times[name]
            else:
                turns.times[name][number] = answer
        if number == 0:
            occasional = slow({name: times[0].cpu for name, times in turns.times.items()})
        number += 1
    return turns
