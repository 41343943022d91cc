"""Steps per second of one process and of several that train together, one thread each, on W4.

    python -m benchmarks.ranks

Rounds are interleaved: in each, one process and then several take the same number of steps of the same trainer, with
Poisson batches, so that the load of the machine strikes both. The figure is the median of the rounds' ratios of steps
per second. On a machine that others use it says little; there the ratio of processor time is given besides: the
processor seconds of a step of one process over those of the busiest of several, step by step. It counts arithmetic,
communication and unequal batches, and leaves out the time in which a process waits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from benchmarks.machine import machine
from benchmarks.workloads import WORKLOADS
from tacit import Trainer
from tacit.distributed import ALONE, Group, Ranks
from tacit.plan import make_plan

EXAMPLES = 2048
TARGET = 1.8


class Traffic:
    """Counts the bytes of tensors that this process gives to or takes from collective operations."""

    def __init__(self) -> None:
        self.bytes = 0
        for name in ("reduce", "broadcast", "all_reduce", "all_gather"):
            setattr(dist, name, self._counting(getattr(dist, name)))

    def _counting(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            for one in given:
                for tensor in one if isinstance(one, list) else [one]:
                    self.bytes += tensor.nbytes if isinstance(tensor, torch.Tensor) else 0
            return operation(*given, **named)

        return counted


def measure(ranks: Ranks, warm: int, steps: int, ratio: float) -> dict[str, Any]:
    """Steps per second, after some steps to warm up, and the processor seconds of each."""
    workload = WORKLOADS["W4"]
    method, options = ("dp-sgd", {}) if ratio == 1 else ("on-rand", {"active_ratio": ratio})
    plan = make_plan(
        method,
        epsilon=8.0,
        delta=1e-5,
        examples=EXAMPLES,
        batch_size=workload.batch_size,
        epochs=(warm + steps + 4) * workload.batch_size / EXAMPLES,
        accountant="rdp",
        **options,
    )
    with tempfile.TemporaryDirectory() as place:
        trainer = Trainer(
            workload.model(),
            TensorDataset(*workload.batch(EXAMPLES)),
            workload.loss,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            run_dir=Path(place) / "run",
            seed=0,
            ranks=ranks,
        )
        traffic = Traffic()
        clock, processor, sent = [], [], []
        for step in trainer.steps():
            clock.append(time.perf_counter())
            processor.append(time.process_time())
            sent.append(traffic.bytes)
            if step.number == warm + steps:
                break
        trainer.close()
    active = trainer.support.size
    worked = [after - before for before, after in pairwise(processor[warm - 1 :])]
    moved = statistics.median(after - before for before, after in pairwise(sent[warm - 1 :]))
    return {
        "per_second": steps / (clock[-1] - clock[warm - 1]),
        "processor": worked,
        "bytes": moved,
        "active": active,
    }


def child(arguments: list[str]) -> None:
    """One of several processes: print its figures."""
    rank, size, warm, steps = (int(word) for word in arguments[:4])
    ratio, store = float(arguments[4]), arguments[5]
    torch.set_num_threads(1)
    ranks: Ranks = ALONE
    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(minutes=10)
        )
        ranks = Group(dist.group.WORLD)  # type: ignore[arg-type]
    print(json.dumps(measure(ranks, warm, steps, ratio)))


@dataclasses.dataclass(frozen=True)
class Pace:
    """Steps per second of some processes, processor seconds of a step on the busiest, and what a step communicates."""

    per_second: float
    processor: float
    bytes: float
    active: int


def together(size: int, warm: int, steps: int, ratio: float) -> Pace:
    """The pace of so many processes; bytes are those of the first, which gives and takes the most."""
    with tempfile.TemporaryDirectory() as place:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.ranks", "--child"]
                + [str(word) for word in (rank, size, warm, steps, ratio, Path(place) / "store")],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("A process of the benchmark has failed.")
    found = [json.loads(output) for output in outputs]
    busiest = [max(steps) for steps in zip(*(rank["processor"] for rank in found), strict=True)]
    first = found[0]
    return Pace(first["per_second"], statistics.mean(busiest), first["bytes"], first["active"])


def one_round(processes: int, steps: int, ratio: float, warm: int = 3) -> dict[str, float]:
    """One process, then several: steps per second, the ratio, that of processor time, and what is communicated."""
    one, many = (together(size, warm, steps, ratio) for size in (1, processes))
    return {
        "one": one.per_second,
        "many": many.per_second,
        "ratio": many.per_second / one.per_second,
        "processor": one.processor / many.processor,
        "bytes": many.bytes,
        "active": many.active,
    }


def main() -> None:
    """Measure in interleaved rounds and print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ratio", type=float, default=1.0, help="active ratio")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    rounds = []
    for number in range(given.rounds):
        rounds.append(one_round(given.processes, given.steps, given.ratio))
        last = rounds[-1]
        print(
            f"round {number + 1}: {last['one']:.3f} and {last['many']:.3f} steps/s, ratio {last['ratio']:.2f}; "
            f"of processor time {last['processor']:.2f}",
            flush=True,
        )
    medians = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    print(
        f"{given.processes} processes: median ratio {medians['ratio']:.2f}, of processor time "
        f"{medians['processor']:.2f} (target {TARGET}); {medians['bytes']:,.0f} bytes a step for "
        f"{medians['active']:,.0f} active numbers"
    )
    if given.json is not None:
        record = {
            "processes": given.processes,
            "active_ratio": given.ratio,
            "medians": medians,
            "rounds": rounds,
        }
        about = {"machine": dataclasses.asdict(machine(1))}
        given.json.write_text(json.dumps({**record, **about}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
