"""The cost of a private step of language models: `python -m benchmarks.language`.

GPT-2 and LLaMA as `transformers` builds them, small, with adapters of `peft` or whole, against an ordinary step and
against Opacus's ghost clipping, time and memory in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.contenders import contenders_for
from benchmarks.contenders.types import Family, StepSettings, prepare
from benchmarks.machine import ROOT, machine
from benchmarks.output import document, write_atomically
from benchmarks.results import Result, analyse
from benchmarks.rounds import Schedule
from benchmarks.step import measure
from benchmarks.table import failures, terminal_table
from benchmarks.workloads import LANGUAGE

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "language.json"
WARM, ROUNDS = 3, 15
CONTENDERS = ["sgd", "tacit-dense", "opacus-ghost"]


def main(arguments: list[str]) -> int:
    """Run, print and, for a complete run, write the JSON; 1 when Tacit does not do the work it should."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(LANGUAGE), default=list(LANGUAGE))
    parser.add_argument("--quick", action="store_true", help="few rounds, without Opacus")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="interleave single steps of all contenders in one process and print ratios of processor time: for a "
        "machine that others use, where a process for each takes long to start; without memory",
    )
    parser.add_argument("--threads", type=int, choices=range(1, 257), default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    if options.one_process:
        torch.set_num_threads(options.threads)
        for name in options.workloads:
            print(json.dumps({"workload": name, "ratios": in_one_process(name)}), flush=True)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 170)
    facts = machine(options.threads)
    schedule = Schedule(3, 0.0) if options.quick else Schedule(7, 20.0)
    workloads = {name: LANGUAGE[name] for name in options.workloads}
    results: list[Result] = []
    for workload in workloads.values():
        chosen = contenders_for(workload, CONTENDERS[: 2 if options.quick else 3])
        results += analyse(
            workload.name, measure(workload, chosen, schedule, options.threads, lambda line: None)
        )
    console.print(terminal_table(results, workloads))
    for line in failures(results):
        console.print(f"no figures: {line}", style="yellow", markup=False)
    complete = not options.quick and list(workloads) == list(LANGUAGE)
    path = options.json or (DEFAULT_JSON if complete else None)
    if path is not None:
        content = document(facts, {"rounds": schedule.rounds}, results)
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        console.print(f"wrote {path}")
    return int(any(result.failure is not None and result.family == Family.TACIT.value for result in results))


def in_one_process(name: str) -> dict[str, float]:
    """Processor seconds of a step over those of an ordinary step: the median over interleaved rounds."""
    workload = LANGUAGE[name]
    steps = {}
    for contender in contenders_for(workload, CONTENDERS):
        torch.manual_seed(0)
        steps[contender.name] = contender.build(*prepare(workload, contender), workload, StepSettings())
    seconds: dict[str, list[float]] = {one: [] for one in steps}
    for place in range(WARM + ROUNDS):
        for one, step in steps.items():
            started = time.process_time()
            step()
            if place >= WARM:
                seconds[one].append(time.process_time() - started)
    return {
        one: round(statistics.median(a / b for a, b in zip(taken, seconds["sgd"], strict=True)), 3)
        for one, taken in seconds.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
