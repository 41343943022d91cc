"""From turns to figures: ratios to plain SGD, speed against Opacus, and what the bar says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.bars import BARS, OPACUS_SPEEDUP
from benchmarks.contenders.types import Contender, Family
from benchmarks.fairness import Agreement
from benchmarks.rounds import StepTime
from benchmarks.worker import PeakMemory

Rounds = Mapping[int, float]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of_any(cls, values: list[float]) -> Spread | None:
        """The spread of the values, None if there are none."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0]) if values else None
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Limit:
    """A figure beside its bar."""

    value: float
    bar: float
    met: bool


@dataclass(frozen=True)
class Result:
    """One contender on one workload; `failure` says why there are no figures."""

    workload: str
    contender: str
    title: str
    family: str
    failure: str | None
    rounds: int = 0
    milliseconds: Spread | None = None
    cpu_milliseconds: Spread | None = None
    time_ratio: Spread | None = None
    cpu_ratio: Spread | None = None
    memory: PeakMemory | None = None
    memory_ratio: float | None = None
    step_memory_ratio: float | None = None
    time_bar: Limit | None = None
    memory_bar: Limit | None = None
    opacus_bar: Limit | None = None
    agreement: Agreement | None = None
    instructions: Spread | None = None
    instruction_ratio: Spread | None = None

    @property
    def limits(self) -> list[Limit]:
        """The bars that apply to this contender."""
        return [limit for limit in (self.time_bar, self.memory_bar, self.opacus_bar) if limit is not None]


@dataclass(frozen=True)
class Measurement:
    """What was measured of one contender: times of a step by round, memory, agreement, or a failure."""

    contender: Contender
    times: Mapping[int, StepTime]
    memory: PeakMemory | None
    agreement: Agreement | None
    failure: str | None

    @property
    def wall(self) -> Rounds:
        """Wall-clock seconds by round."""
        return {number: time.wall for number, time in self.times.items()}

    @property
    def cpu(self) -> Rounds:
        """Processor seconds by round."""
        return {number: time.cpu for number, time in self.times.items()}

    @property
    def counted(self) -> Rounds:
        """Instructions by round, where the machine counts them."""
        return {n: time.instructions for n, time in self.times.items() if time.instructions is not None}


def ratios(seconds: Rounds, references: list[Rounds]) -> list[float]:
    """Per round, the time over the least time any of the references took in that same round."""
    found = []
    for number, value in seconds.items():
        least = [reference[number] for reference in references if number in reference]
        if least:
            found.append(value / min(least))
    return found


def _fastest(measurements: list[Measurement], family: Family) -> Measurement | None:
    taking_part = [m for m in measurements if m.contender.family is family and m.failure is None and m.times]
    return min(taking_part, key=lambda m: statistics.median(m.wall.values()), default=None)


def analyse(workload: str, measurements: list[Measurement]) -> list[Result]:
    """The results of one workload: time and memory against the fastest plain SGD."""
    plain = [m for m in measurements if m.contender.family is Family.SGD and m.failure is None]
    sgd, opacus = _fastest(measurements, Family.SGD), _fastest(measurements, Family.OPACUS)
    return [_result(workload, m, plain, sgd, opacus) for m in measurements]


def _result(
    workload: str,
    measured: Measurement,
    plain: list[Measurement],
    sgd: Measurement | None,
    opacus: Measurement | None,
) -> Result:
    contender = measured.contender
    if measured.failure is not None:
        return Result(
            workload, contender.name, contender.title, contender.family.value, measured.failure,
            agreement=measured.agreement,
        )  # fmt: skip
    time_ratio = Spread.of_any(ratios(measured.wall, [m.wall for m in plain]))
    cpu_ratio = Spread.of_any(ratios(measured.cpu, [m.cpu for m in plain]))
    memory_ratio = step_memory_ratio = None
    if sgd is not None and sgd.memory is not None and measured.memory is not None:
        memory_ratio = measured.memory.total_bytes / sgd.memory.total_bytes
        step_memory_ratio = measured.memory.step_bytes / sgd.memory.step_bytes

    time_bar = memory_bar = opacus_bar = None
    bar = BARS[contender.bar] if contender.bar is not None else None
    if bar is not None:
        if time_ratio is not None and workload in bar.time:
            limit = bar.time[workload]
            time_bar = Limit(time_ratio.median, limit, time_ratio.median <= limit)
        if memory_ratio is not None:
            memory_bar = Limit(memory_ratio, bar.memory, memory_ratio <= bar.memory)
        if opacus is not None:
            slowdowns = ratios(measured.wall, [opacus.wall])
            speedup = 1 / statistics.median(slowdowns)
            opacus_bar = Limit(speedup, OPACUS_SPEEDUP, speedup >= OPACUS_SPEEDUP)
    return Result(
        workload,
        contender.name,
        contender.title,
        contender.family.value,
        None,
        len(measured.times),
        Spread.of_any([1000 * value for value in measured.wall.values()]),
        Spread.of_any([1000 * value for value in measured.cpu.values()]),
        time_ratio,
        cpu_ratio,
        measured.memory,
        memory_ratio,
        step_memory_ratio,
        time_bar,
        memory_bar,
        opacus_bar,
        measured.agreement,
        Spread.of_any(list(measured.counted.values())),
        Spread.of_any(ratios(measured.counted, [m.counted for m in plain])),
    )


def processor_share(results: list[Result]) -> float:
    """The least share of its time that plain SGD had the processor, on any workload; for one thread."""
    shares = [
        result.cpu_milliseconds.median / result.milliseconds.median
        for result in results
        if result.family == Family.SGD.value and result.milliseconds and result.cpu_milliseconds
    ]
    return min(shares, default=1.0)
