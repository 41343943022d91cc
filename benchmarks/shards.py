"""Memory of one process where several train one model: each with the whole of it, or each with its shards.

    python -m benchmarks.shards

A network of eight square layers is trained with Adam and an average of the weights. For one process, and for several in
both forms, it gives the anonymous memory of the process that takes most, over what it had before there was a model:
*held* between steps, and the *peak* within steps after the first, in bytes per parameter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from benchmarks.machine import ROOT, machine
from benchmarks.output import write_atomically
from benchmarks.peak import idle_anonymous, peak_anonymous, return_freed_blocks
from tacit import Trainer
from tacit.distributed import ALONE, Group
from tacit.losses import cross_entropy
from tacit.plan import make_plan

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "shards.json"
EXAMPLES, BATCH, STEPS = 256, 16, 4
WIDTH, LAYERS = 1024, 8


def measure(rank: int, size: int, sharded: bool) -> dict[str, float]:
    """Bytes per parameter of this process, held and at the peak of steps."""
    return_freed_blocks()
    ranks = Group(dist.group.WORLD) if size > 1 else ALONE  # type: ignore[arg-type]
    x = torch.randn(EXAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    before = idle_anonymous()
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 2))
    count = sum(parameter.numel() for parameter in model.parameters())
    if sharded:
        mesh = init_device_mesh("cpu", (size,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    plan = make_plan(
        "dp-sgd",
        epsilon=8.0,
        delta=1e-5,
        examples=EXAMPLES,
        batch_size=BATCH,
        epochs=(STEPS + 1) * BATCH / EXAMPLES,
    )
    trainer = Trainer(
        model,
        data,
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.Adam(named, lr=1e-3),
        average=0.99,
        seed=0,
        ranks=ranks,
    )
    steps = iter(trainer.steps())
    start = peak_anonymous(lambda: next(steps) and None)

    def rest() -> None:
        for _ in range(STEPS):
            next(steps)

    peak = peak_anonymous(rest)
    held = idle_anonymous()
    return {
        name: (value - before) / count for name, value in (("held", held), ("peak", peak), ("start", start))
    }


def run(size: int, sharded: bool) -> dict[str, float]:
    """The most that one of so many processes takes."""
    with tempfile.TemporaryDirectory() as place:
        words = [str(size), str(int(sharded)), str(Path(place) / "store")]
        command = [sys.executable, "-m", "benchmarks.shards", "--rank"]
        started = [
            subprocess.Popen([*command, str(rank), *words], stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for rank in range(size)
        ]
        found = [json.loads(process.communicate()[0]) for process in started]
    return {name: max(one[name] for one in found) for name in found[0]}


def child(rank: int, size: int, sharded: bool, store: str) -> None:
    """One of several processes: print its figures."""
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    print(json.dumps(measure(rank, size, sharded)), flush=True)
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def main(arguments: list[str]) -> int:
    """Measure, print a table and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="PATH")
    options = parser.parse_args(arguments)
    if options.rank is not None:
        rank, size, sharded, store = options.rank
        child(int(rank), int(size), sharded == "1", store)
        return 0
    rows = []
    print("processes  form     held  peak of a step  peak at the start   (bytes per parameter)")
    for size, sharded in [(1, False), (2, False), (2, True), (4, False), (4, True)]:
        found = run(size, sharded)
        rows.append({"processes": size, "sharded": sharded, **{k: round(v, 2) for k, v in found.items()}})
        form = "sharded" if sharded else "whole"
        print(
            f"{size:9}  {form:7}{found['held']:6.1f}{found['peak']:16.1f}{found['start']:19.1f}", flush=True
        )
    content = {"machine": vars(machine(1)), "rows": rows}
    write_atomically(options.json, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
