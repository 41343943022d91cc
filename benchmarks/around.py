"""What a whole run costs beside its bare steps: `python -m benchmarks.around`.

A bare step is `PrivateStep.step` on batches that lie ready, charged to a ledger in memory. Beside it stands
`Trainer.fit` with a run directory: sampling, a ledger on disk, checkpoints, figures on held-out data, progress. Blocks
of bare steps and whole runs take turns, and medians are compared, by the clock and by processor time. What a run does
once (checks at the start, the certificate) is the difference between a long run and a short one, and is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from benchmarks.machine import machine
from benchmarks.output import write_atomically
from tacit.losses import cross_entropy

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "around.json"
INPUTS, CLASSES, EXAMPLES, HELD_OUT = 64, 10, 20_000, 2_000


@dataclass(frozen=True)
class Size:
    """A model whose bare step takes about so long, and the most that a run may add, as a ratio."""

    name: str
    width: int
    batch: int
    steps: int
    bar: float


SIZES = (Size("about 1 ms", 32, 64, 2000, 2.0), Size("about 10 ms", 768, 256, 300, 1.10))
"""A run of 300 steps is charged three at a time at most, which does not matter where steps are long."""


def model(size: Size) -> nn.Module:
    torch.manual_seed(0)
    if size.width > 100:
        hidden = [nn.Linear(size.width, size.width // 2), nn.ReLU(), nn.Linear(size.width // 2, CLASSES)]
    else:
        hidden = [nn.Linear(size.width, CLASSES)]
    return nn.Sequential(nn.Linear(INPUTS, size.width), nn.ReLU(), *hidden)


def data(rows: int) -> TensorDataset:
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(rows))
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def seconds(call: Any) -> tuple[float, float]:
    """By the clock and of the processor."""
    started, before = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - started, time.process_time() - before


class Bare:
    """Steps on batches that lie ready."""

    def __init__(self, size: Size) -> None:
        self.net = model(size)
        self.step = tacit.PrivateStep(
            self.net,
            cross_entropy,
            support=tacit.Support.all(self.net),
            clip_norm=1.0,
            noise_multiplier=1.0,
            batch_size=size.batch,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        )
        x, y = data(EXAMPLES).tensors
        places = torch.randint(EXAMPLES, (50, size.batch), generator=torch.Generator().manual_seed(1))
        self.batches = [(x[rows], y[rows]) for rows in places]

    def __call__(self, steps: int) -> tuple[float, float]:
        return seconds(lambda: [self.step.step(self.batches[i % 50]) for i in range(steps)])


def fit(size: Size, steps: int, place: Path) -> tuple[float, float]:
    plan = tacit.make_plan(
        "dp-sgd",
        epsilon=8,
        delta=1e-5,
        examples=EXAMPLES,
        batch_size=size.batch,
        epochs=steps * size.batch / EXAMPLES,
        clip_norm=1.0,
    )
    trainer = tacit.Trainer(
        model(size),
        data(EXAMPLES),
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        run_dir=place,
        held_out=data(HELD_OUT),
    )
    return seconds(lambda: trainer.fit(progress=False))


def compared(size: Size, rounds: int, share: float, folder: Path) -> dict[str, Any]:
    """Medians over rounds of the time of one step, bare and within a run."""
    steps = round(share * size.steps)
    bare = Bare(size)
    bare(20)
    short = max(2, steps // 10)
    found: dict[str, list[tuple[float, float]]] = {"bare": [], "run": []}
    for number in range(rounds):
        found["bare"].append(tuple(value / steps for value in bare(steps)))  # type: ignore[arg-type]
        few = fit(size, short, folder / f"{size.width}-{number}-short")
        many = fit(size, steps, folder / f"{size.width}-{number}-long")
        found["run"].append(tuple((b - a) / (steps - short) for a, b in zip(few, many, strict=True)))  # type: ignore[arg-type]
    names = ("seconds", "processor_seconds")
    medians = {
        part: {name: statistics.median(pair[place] for pair in pairs) for place, name in enumerate(names)}
        for part, pairs in found.items()
    }
    ratios = {name: medians["run"][name] / medians["bare"][name] for name in names}
    return {
        "size": asdict(size),
        "steps": steps,
        **medians,
        "ratio": ratios,
        "sync_seconds": sync_seconds(folder),
    }


def sync_seconds(folder: Path) -> float:
    """What one line that is on disk for certain costs here."""
    times = []
    with (folder / "line").open("ab") as file:
        for _ in range(30):
            started = time.perf_counter()
            file.write(b"x" * 300)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.around", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the steps of each size, for a quick look"
    )
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory() as place:
        for size in SIZES:
            results.append(compared(size, options.rounds, options.share, Path(place)))
            last = results[-1]
            print(
                f"{size.name}: bare {1e3 * last['bare']['seconds']:.2f} ms, in a run "
                f"{1e3 * last['run']['seconds']:.2f} ms, ratio {last['ratio']['seconds']:.2f} by the clock, "
                f"{last['ratio']['processor_seconds']:.2f} of the processor (bar {size.bar})",
                flush=True,
            )
    record = {"machine": asdict(machine(1)), "rounds": options.rounds, "results": results}
    write_atomically(options.json, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
