"""Two threads and two processes against one: `python -m benchmarks.scaling`.

Threads: W3 to W5, plain SGD and Tacit in one process with one and with two threads, in turns. Processes: W4, dense and
on a tenth of the coordinates, with the bytes that a step communicates. Needs two cores that nobody else uses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.isolation import Failure, Isolated
from benchmarks.machine import ROOT, machine
from benchmarks.output import caption, write_atomically
from benchmarks.ranks import TARGET as PROCESSES_TARGET
from benchmarks.ranks import one_round
from benchmarks.rounds import steps_per_turn
from benchmarks.worker import TimingWorker
from benchmarks.workloads import WORKLOADS

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "scaling.json"
THREADS_TARGET = 1.7
TITLES = {
    "sgd": "plain SGD",
    "tacit-dense": "Tacit, all coordinates",
    "tacit-topk": "Tacit, coordinates, ρ = 0.1",
    "tacit-rows": "Tacit, rows, ρ = 0.1",
}
SENTENCE = "Written by `python -m benchmarks.scaling`."


def threads(workload: str, contender: str, rounds: int) -> dict[str, Any]:
    """Steps per second of two threads over those of one, in interleaved turns."""
    if contender == "sgd" and WORKLOADS[workload].convolutional:
        contender = "sgd-cl"
    workers = {count: Isolated(TimingWorker, workload, contender, threads=count) for count in (1, 2)}
    try:
        seconds = {count: worker.call("warm_up") for count, worker in workers.items()}
        ratios = []
        for _ in range(rounds):
            turns = {
                count: worker.call("turn", steps_per_turn(seconds[1])) for count, worker in workers.items()
            }
            failed = [turn for turn in turns.values() if isinstance(turn, Failure)]
            if failed:
                raise SystemExit(f"{workload} {contender}: {failed[0].reason}")
            ratios.append(turns[1].wall / turns[2].wall)
    finally:
        for worker in workers.values():
            worker.close()
    return {
        "workload": workload,
        "contender": contender,
        "ratios": ratios,
        "median": statistics.median(ratios),
    }


def page(record: dict[str, Any], about: str) -> str:
    """The figures in Markdown."""
    lines = [f"# Two threads, two processes\n\n{SENTENCE} {about}.\n"]
    shares = record["processes"]
    if record["threads"]:
        lines.append("| two threads over one | W3 | W4 | W5 |\n|---|--:|--:|--:|")
        for name, title in TITLES.items():
            found = {r["workload"]: r["median"] for r in record["threads"] if r["contender"].startswith(name)}
            row = " | ".join(f"{found[w]:.2f}" if w in found else "–" for w in ("W3", "W4", "W5"))
            lines.append(f"| {title} | {row} |")
        lines.append(f"\nThe bar is {THREADS_TARGET} where plain SGD itself scales.\n")
    if shares:
        lines.append(
            "| two processes over one, W4 | steps per second | of processor time | active numbers | bytes a step |\n"
            "|---|--:|--:|--:|--:|"
        )
        for share in shares:
            lines.append(
                f"| active ratio {share['active_ratio']:g} | {share['ratio']:.2f} | {share['processor']:.2f} "
                f"| {share['active']:,.0f} | {share['bytes']:,.0f} |"
            )
        lines.append(
            f"\nThe bar is {PROCESSES_TARGET}. Bytes are those of the tensors that the first process gives "
            "and takes: sums in double precision, releases in single, and a few words that keep step."
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps of each process in a round")
    parser.add_argument("--workloads", default="W3,W4,W5", help="for threads; an empty word for none")
    parser.add_argument(
        "--ratios", default="1,0.1", help="active ratios for processes; an empty word for none"
    )
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON)
    given = parser.parse_args(arguments)
    record: dict[str, Any] = {"machine": asdict(machine(2)), "threads": [], "processes": []}
    for workload in filter(None, given.workloads.split(",")):
        for contender in TITLES:
            found = threads(workload, contender, given.rounds)
            record["threads"].append(found)
            print(f"{workload} {found['contender']}: two threads {found['median']:.2f}", flush=True)
    for ratio in map(float, filter(None, given.ratios.split(","))):
        rounds = [one_round(2, given.steps, ratio) for _ in range(given.rounds)]
        medians = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
        record["processes"].append({"active_ratio": ratio, **medians, "rounds": rounds})
        print(
            f"W4, active ratio {ratio:g}: two processes {medians['ratio']:.2f}, of processor time "
            f"{medians['processor']:.2f}, {medians['bytes']:,.0f} bytes a step for {medians['active']:,.0f} numbers",
            flush=True,
        )
    write_atomically(given.json, json.dumps(record, indent=1) + "\n")
    write_atomically(given.json.with_suffix(".md"), page(record, caption(machine(2))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
