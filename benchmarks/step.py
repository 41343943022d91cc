"""The cost of one private step against plain SGD and Opacus: `python -m benchmarks.step`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.contenders import CONTENDERS, contenders_for
from benchmarks.contenders.types import Contender, Family
from benchmarks.fairness import Agreement, FairnessChecker
from benchmarks.isolation import Failure, Isolated
from benchmarks.machine import ROOT, machine
from benchmarks.output import write_run
from benchmarks.results import Measurement, Result, analyse, processor_share
from benchmarks.rounds import BUSY, Schedule, run_rounds
from benchmarks.table import failures, terminal_table, verdict
from benchmarks.worker import MemoryWorker, PeakMemory, TimingWorker
from benchmarks.workloads import WORKLOADS, Workload

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "step.json"
QUICK_CONTENDERS = [
    "sgd", "sgd-cl", "opacus-ew", "opacus-ew-cl", "opacus-ghost", "tacit-dense", "tacit-topk", "tacit-rows",
]  # fmt: skip
# An Opacus mode this much slower than the fastest one takes part in three rounds only. Far enough beyond it that the
# fastest one, whose time Tacit's is compared with round by round, is never taken for slow by one unlucky turn.
SLOW = 1.25
# Seconds for which turns of one workload are taken again because other programs had the processor.
PATIENCE = 60.0
NOT_COMPARABLE = "not comparable"


def _names(allowed: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)} unknown; choose from {', '.join(allowed)}"
            )
        return names

    return parse


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--workloads", type=_names(list(WORKLOADS)), metavar="W1,W3")
    parser.add_argument("--contenders", type=_names(list(CONTENDERS)), metavar="sgd,tacit-dense")
    parser.add_argument("--rounds", type=_positive, help="least number of rounds (default 7, quick 3)")
    parser.add_argument("--threads", type=_positive, default=1)
    parser.add_argument("--quick", action="store_true", help="few rounds, without the slow Opacus modes")
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="where to write; table and figure go beside it"
    )
    return parser.parse_args(arguments)


def slow_modes(contenders: dict[str, Contender], step_seconds: dict[str, float]) -> set[str]:
    """The Opacus modes that are clearly slower than the fastest one."""
    opacus = {n: s for n, s in step_seconds.items() if contenders[n].family is Family.OPACUS}
    return {name for name, seconds in opacus.items() if seconds > SLOW * min(opacus.values())}


def measure(
    workload: Workload,
    contenders: list[Contender],
    schedule: Schedule,
    threads: int,
    say: Callable[[str], None],
) -> list[Measurement]:
    """All measurements of one workload: agreement, peak memory, then interleaved rounds."""
    agreements: dict[str, Agreement] = {}
    memory: dict[str, PeakMemory] = {}
    step_seconds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    workers: dict[str, Isolated] = {}
    by_name = {contender.name: contender for contender in contenders}
    checker = Isolated(FairnessChecker, workload.name, threads=threads)
    try:
        for name, contender in by_name.items():
            say(f"{workload.name} {name}: agreement and memory")
            if not checker.alive:
                checker = Isolated(FairnessChecker, workload.name, threads=threads)
            agreement = checker.call("check", name)
            if isinstance(agreement, Failure):
                reasons[name] = agreement.reason
                continue
            agreements[name] = agreement
            complaint = agreement.complaint(contender)
            if complaint is not None:
                reasons[name] = f"{NOT_COMPARABLE}: {complaint}"
                continue
            measured = Isolated(MemoryWorker, workload.name, name, threads=threads)
            peak = measured.call("peak")
            measured.close()
            if isinstance(peak, Failure):
                reasons[name] = peak.reason
                continue
            memory[name] = peak
            workers[name] = Isolated(TimingWorker, workload.name, name, threads=threads)
            seconds = workers[name].call("warm_up")
            if isinstance(seconds, Failure):
                reasons[name] = seconds.reason
            else:
                step_seconds[name] = seconds
        checker.close()
        say(f"{workload.name}: rounds")
        turns = run_rounds(
            lambda name, steps: workers[name].call("turn", steps),
            step_seconds,
            partial(slow_modes, by_name),
            schedule,
        )
        reasons.update({name: failure.reason for name, failure in turns.failures.items()})
    finally:
        for process in (checker, *workers.values()):
            process.close()
    return [
        Measurement(
            contender,
            turns.times.get(name, {}),
            memory.get(name),
            agreements.get(name),
            reasons.get(name),
        )
        for name, contender in by_name.items()
    ]


def main(arguments: list[str]) -> int:
    """Run, print the table and write the files; 1 when Tacit or plain SGD does not do the work it should."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 170)
    names = options.contenders or (QUICK_CONTENDERS if options.quick else None)
    patience = PATIENCE if options.threads == 1 and not options.quick else 0.0
    schedule = Schedule(
        options.rounds or (3 if options.quick else 7), 0.0 if options.quick else 20.0, patience
    )
    workloads = {name: WORKLOADS[name] for name in options.workloads or WORKLOADS}
    facts = machine(options.threads)
    started = time.perf_counter()
    results: list[Result] = []
    for workload in workloads.values():
        with console.status("") as status:
            chosen = contenders_for(workload, names)
            measured = measure(workload, chosen, schedule, options.threads, status.update)
        results += analyse(workload.name, measured)
    console.print(terminal_table(results, workloads))
    for line in failures(results):
        console.print(f"no figures: {line}", style="yellow", markup=False)
    elapsed = time.perf_counter() - started
    share = processor_share(results)
    if options.threads == 1 and share < BUSY:
        console.print(
            f"the machine was busy: a step had the processor {100 * share:.0f} % of its time", style="red"
        )
    console.print(f"{verdict(results)}. {facts.cpu}, threads {facts.threads}, {elapsed:.0f} s.")

    complete = options.workloads is None and names is None
    path = options.json or (DEFAULT_JSON if complete else None)
    if path is not None:
        settings = {
            "rounds": schedule.rounds,
            "contenders": names,
            "seconds": round(elapsed),
            "processor_share": share,
        }
        for written in write_run(path, facts, settings, results, workloads):
            console.print(f"wrote {written}")
    else:
        console.print("partial run: nothing written (use --json PATH)")
    return int(
        any(
            (result.failure or "").startswith(NOT_COMPARABLE) and result.family != Family.OPACUS.value
            for result in results
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
