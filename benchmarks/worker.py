"""One contender on one workload, in a process of its own: peak memory first, then timed turns."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.types import Contender, Step, StepSettings, prepare
from benchmarks.peak import idle_anonymous, peak_anonymous
from benchmarks.rounds import StepTime
from benchmarks.workloads import Batch, Workload, workload_named


@dataclass(frozen=True)
class FirstSteps:
    """Peak memory of the second step over the idle process, and how long that step took."""

    peak_bytes: int
    seconds: float


def _tiny_batch(size: int) -> Batch:
    return torch.randn(size, 60), torch.randint(0, 10, (size,))


TINY = Workload("tiny", "linear classifier", 4, False, lambda: nn.Linear(60, 10), _tiny_batch)


def rehearse(contender: Contender) -> None:
    """Take a step on a tiny model, so that modules imported on first use do not count as memory of a step."""
    model, batch = prepare(TINY, contender)
    contender.build(model, batch, TINY, StepSettings())()


class ContenderWorker:
    """Serves `first_steps` once, then `turn` any number of times."""

    def __init__(self, workload: str, contender: Contender | str) -> None:
        self._contender = CONTENDERS[contender] if isinstance(contender, str) else contender
        self._workload = workload_named(workload)
        rehearse(self._contender)
        self._model, self._batch = prepare(self._workload, self._contender)
        self._idle = idle_anonymous()
        self._step: Step | None = None

    def first_steps(self) -> FirstSteps:
        """Build the step, take one step to warm up, then one under measurement.

        The idle process holds the model and the batch; what the contender itself allocates (indices,
        optimizer state, workspaces that live between steps) counts as memory of the step.
        """
        step = self._contender.build(self._model, self._batch, self._workload, StepSettings())
        step()
        started = time.perf_counter()
        peak = peak_anonymous(step)
        seconds = time.perf_counter() - started
        self._step = step
        return FirstSteps(peak - self._idle, seconds)

    def turn(self, steps: int) -> StepTime:
        """The time of a step over `steps` consecutive steps."""
        if self._step is None:
            raise RuntimeError("first_steps comes before turn")
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return StepTime(wall / steps, cpu / steps)
