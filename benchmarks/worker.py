"""One contender on one workload, in a process of its own: one kind for peak memory, one for time."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.types import Contender, StepSettings, prepare
from benchmarks.counters import instructions
from benchmarks.peak import idle_anonymous, peak_anonymous, return_freed_blocks
from benchmarks.rounds import StepTime
from benchmarks.workloads import Batch, Workload, workload_named

# A step this slow needs no second one to warm up.
SLOW_STEP_SECONDS = 3.0
MEASURED_STEPS = 3


@dataclass(frozen=True)
class PeakMemory:
    """Memory of the model and the batch, and the peak of a step beyond that."""

    model_bytes: int
    step_bytes: int

    @property
    def total_bytes(self) -> int:
        """Peak over a process that has only imported the libraries."""
        return self.model_bytes + self.step_bytes


def _tiny_batch(size: int) -> Batch:
    return torch.randn(size, 60), torch.randint(0, 10, (size,))


TINY = Workload("tiny", "linear classifier", 4, False, lambda: nn.Linear(60, 10), _tiny_batch)


def _rehearse(contender: Contender) -> None:
    """Take a step on a tiny model, so that modules imported on first use do not count as memory of a step."""
    model, batch = prepare(TINY, contender)
    contender.build(model, batch, TINY, StepSettings())()


class MemoryWorker:
    """Serves `peak`."""

    def __init__(self, workload: Workload | str, contender: Contender | str) -> None:
        self._contender = CONTENDERS[contender] if isinstance(contender, str) else contender
        self._workload = workload_named(workload) if isinstance(workload, str) else workload

    def peak(self) -> PeakMemory:
        """Build the model and the batch, then the step; take one step to warm up, then three under measurement.

        What the contender itself keeps (gradients, indices, optimizer state, workspaces that live between
        steps) counts as memory of the step. The median counts: one of the first steps of Tacit, nobody knows which,
        also looks at how the model treats examples, which takes memory of its own.
        """
        return_freed_blocks()
        _rehearse(self._contender)
        empty = idle_anonymous()
        model, batch = prepare(self._workload, self._contender)
        idle = idle_anonymous()
        step = self._contender.build(model, batch, self._workload, StepSettings())
        step()
        peak = statistics.median(peak_anonymous(step) for _ in range(MEASURED_STEPS))
        return PeakMemory(idle - empty, round(peak) - idle)


class TimingWorker:
    """Serves `warm_up` and `turn`."""

    def __init__(self, workload: str, contender: str) -> None:
        chosen = CONTENDERS[contender]
        model, batch = prepare(workload_named(workload), chosen)
        self._step = chosen.build(model, batch, workload_named(workload), StepSettings())

    def warm_up(self) -> float:
        """Take one or two steps; about how long the next will take."""
        first = self.turn(1).wall
        return first if first > SLOW_STEP_SECONDS else self.turn(1).wall

    def turn(self, steps: int) -> StepTime:
        """The time of a step over `steps` consecutive steps."""
        executed, wall, cpu = instructions(), time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._step()
        wall, cpu, after = time.perf_counter() - wall, time.process_time() - cpu, instructions()
        counted = None if executed is None or after is None else (after - executed) / steps
        return StepTime(wall / steps, cpu / steps, counted)
