"""Instructions of a step, counted by valgrind: `python -m benchmarks.instructions`.

Many machines hide their processor's counters; valgrind counts on every machine, and neither clock rates nor other
programs change what it counts. Plain SGD in its fastest layout and Tacit take a few steps and then, in another process,
a few more; the difference of the two counts is that of the steps in between, without what it takes to start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.types import StepSettings, prepare
from benchmarks.machine import ROOT, Machine, machine
from benchmarks.output import caption, write_atomically
from benchmarks.workloads import WORKLOADS, workload_named

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "instructions.json"
TIMES = ROOT / "docs" / "benchmarks" / "step.json"
PRIVATE = ("tacit-dense", "tacit-topk", "tacit-rows")
STEPS = (2, 4)
"""Steps of the two processes. The first step looks at the model and plans its memory; no other one looks here."""
COUNTER = (
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=no",
    "--cachegrind-out-file=/dev/null",
)
_COUNTED = re.compile(r"I +refs: +([\d,]+)")


@dataclass(frozen=True)
class Count:
    """Instructions of all of a process that takes the first and one that takes the second number of ``steps``."""

    contender: str
    steps: tuple[int, int]
    instructions: tuple[int, int]

    @property
    def per_step(self) -> float:
        """Instructions of one of the steps that the second process takes beyond the first."""
        return (self.instructions[1] - self.instructions[0]) / (self.steps[1] - self.steps[0])


@dataclass(frozen=True)
class Counts:
    """All counts of one workload; the first is of plain SGD."""

    workload: str
    valgrind: str
    machine: Machine
    counts: tuple[Count, ...]

    @classmethod
    def read(cls, record: dict[str, Any]) -> Counts:
        """What the file says."""
        counts = tuple(
            Count(one["contender"], tuple(one["steps"]), tuple(one["instructions"]))
            for one in record["counts"]
        )
        facts = {**record["machine"], "load_average": tuple(record["machine"]["load_average"])}
        return cls(record["workload"], record["valgrind"], Machine(**facts), counts)

    @property
    def record(self) -> dict[str, Any]:
        """The same as plain values, with what follows from the counts."""
        plain = self.counts[0].per_step
        figures = [
            {**asdict(one), "per_step": one.per_step, "ratio": one.per_step / plain} for one in self.counts
        ]
        return {**asdict(self), "counts": figures}


def take(workload: str, contender: str, steps: int) -> None:
    """Take so many steps, in this process; later looks at the model are put off until after them."""
    from tacit.raw import inspector

    inspector.FIRST = steps + 1
    torch.set_num_threads(1)
    model, batch = prepare(workload_named(workload), CONTENDERS[contender])
    step = CONTENDERS[contender].build(model, batch, workload_named(workload), StepSettings())
    for _ in range(steps):
        step()


def counted(workload: str, contender: str, steps: int) -> int:
    """The instructions of a process that takes so many steps."""
    command = [
        *COUNTER,
        sys.executable,
        "-m",
        "benchmarks.instructions",
        "--take",
        workload,
        contender,
        str(steps),
    ]
    # The order of a set of names must not differ between the processes.
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **fixed}, capture_output=True, text=True, check=False
    )
    found = _COUNTED.search(done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{workload} {contender}, {steps} steps: {done.stderr.strip()[-1000:]}")
    return int(found[1].replace(",", ""))


def fastest_plain(workload: str) -> str:
    """The layout in which plain SGD was fastest when its time was last recorded."""
    results = json.loads(TIMES.read_text(encoding="utf-8"))["results"]
    seconds = {
        result["contender"]: result["milliseconds"]["median"]
        for result in results
        if result["workload"] == workload and result["family"] == "sgd"
    }
    return min(seconds, key=seconds.__getitem__)


def measure(workload: str) -> Counts:
    """Count every contender on one workload."""
    version = subprocess.run([COUNTER[0], "--version"], capture_output=True, text=True, check=True)
    found = []
    for contender in (fastest_plain(workload), *PRIVATE):
        began = time.perf_counter()
        first, second = (counted(workload, contender, steps) for steps in STEPS)
        found.append(Count(contender, STEPS, (first, second)))
        print(
            f"{workload} {contender}: {found[-1].per_step / 1e6:,.1f} million instructions a step, "
            f"{found[-1].per_step / found[0].per_step:.2f} of plain SGD's ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
    return Counts(workload, version.stdout.strip(), machine(1), tuple(found))


def page(workloads: list[Counts]) -> str:
    """The figures in Markdown."""
    parts = [
        "# Instructions of a private step\n\n"
        "Written by `python -m benchmarks.instructions`. Instructions in user mode, counted by valgrind. Version 3.19 "
        "shows programs a processor without AVX-512, so the AVX2 paths of PyTorch and its libraries are counted, also "
        "on a processor that has more. A count is the difference of two processes: "
        "start, first step and the looks at the model are not in it. Instructions are not time: one that waits for "
        "memory counts as much as one that does not. [Time](step.md).",
    ]
    for one in workloads:
        workload = WORKLOADS[one.workload]
        lines = [
            f"## {one.workload}: {workload.title}, batch {workload.batch_size}\n",
            "| contender | million instructions a step | × SGD |\n|---|--:|--:|",
        ]
        for figure in one.record["counts"]:
            title = CONTENDERS[figure["contender"]].title
            lines.append(f"| {title} | {figure['per_step'] / 1e6:,.1f} | {figure['ratio']:.2f} |")
        steps = one.counts[0].steps
        lines.append(
            f"\n{one.valgrind}, processes of {steps[0]} and {steps[1]} steps. {caption(one.machine)}."
        )
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Count, print, and write after every workload; those that are not asked for stay as they were recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="W1,W3")
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_JSON, help="where to write; the page goes beside it"
    )
    parser.add_argument("--take", nargs=3, metavar=("WORKLOAD", "CONTENDER", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.take is not None:
        take(options.take[0], options.take[1], int(options.take[2]))
        return 0
    asked = options.workloads.split(",")
    unknown = [name for name in asked if name not in WORKLOADS]
    if unknown:
        parser.error(f"{', '.join(unknown)} unknown; choose from {', '.join(WORKLOADS)}")
    recorded = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else []
    found = {record["workload"]: Counts.read(record) for record in recorded}
    for workload in asked:
        found[workload] = measure(workload)
        ordered = [found[name] for name in WORKLOADS if name in found]
        records = [one.record for one in ordered]
        write_atomically(options.json, json.dumps(records, indent=1, ensure_ascii=False) + "\n")
        write_atomically(options.json.with_suffix(".md"), page(ordered))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
