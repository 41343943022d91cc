"""How a private step grows: `python -m benchmarks.growth`.

Time and memory of one step against the number of coordinates d, of active ones k, the batch, the length of a sequence
and the rows of a unit; then what is done once at a large size: a selection at d = 10⁸, a plan, and reading and
recounting a ledger of 10⁶ steps. Every line is measured in a process of its own. Time is the least processor time of a
step over some turns; memory is the largest resident size beyond that before the model was made.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import ROOT, machine
from benchmarks.output import write_atomically

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "growth.json"
TURNS = 5
AXES: dict[str, tuple[str, list[int]]] = {
    "d": ("coordinates, all active", [10**4, 10**5, 10**6, 10**7]),
    "d-sparse": ("coordinates, 10,000 active", [10**5, 10**6, 10**7, 10**8]),
    "k": ("active of 10⁷ coordinates", [10**3, 10**4, 10**5, 10**6, 10**7]),
    "batch": ("examples in a batch", [16, 64, 256, 1024, 4096]),
    "length": ("tokens of a sequence", [32, 64, 128, 256, 512]),
    "unit": ("rows of a unit, of 512 in a batch", [1, 2, 4, 16, 64]),
}
ONCE = ("selection", "plan", "ledger")


class Encoder(nn.Module):
    """A layer of attention over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(self.embedding(tokens)).mean(1))
        return answer


def mlp(coordinates: int) -> nn.Module:
    """Two layers of about so many coordinates."""
    width = max(1, round(((100 + 11) ** 2 / 4 + coordinates) ** 0.5 - (100 + 11) / 2))
    return nn.Sequential(
        nn.Linear(100, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def stepping(axis: str, size: int) -> Callable[[], Any]:
    """A step of this size."""
    import tacit
    from tacit.losses import cross_entropy

    torch.manual_seed(0)
    batch, units = 64, None
    model = mlp(10**5)
    if axis in ("d", "d-sparse", "k"):
        model, batch = mlp(10**7 if axis == "k" else size), 32
    elif axis == "batch":
        batch = size
    elif axis == "length":
        model, batch = Encoder(), 16
    elif axis == "unit":
        batch = 512
        units = [row // size for row in range(batch)]
    inputs = torch.randint(1000, (batch, size)) if axis == "length" else torch.randn(batch, 100)
    active = {"d-sparse": 10_000, "k": size}.get(axis)
    total = sum(p.numel() for p in model.parameters())
    support = (
        tacit.Support.all(model)
        if active is None or active >= total
        else tacit.Support.random(model, size=active, seed=0)
    )
    private = tacit.PrivateStep(
        model,
        cross_entropy,
        support=support,
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=batch,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.01),
    )
    rows = (inputs, torch.randint(10, (batch,)))
    return lambda: private.step(rows, units)


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def points(axis: str) -> list[dict[str, float]]:
    """All sizes of an axis, the smallest first, so that the largest resident size is that of the last."""
    warm = stepping("batch", 16)
    warm()
    before, found = resident(), []
    for size in AXES[axis][1]:
        step = stepping(axis, size)
        step()
        step()
        times = []
        for _ in range(TURNS):
            started = time.process_time()
            step()
            times.append(time.process_time() - started)
        found.append({"size": size, "processor_seconds": min(times), "bytes": resident() - before})
    return found


def once(what: str) -> dict[str, float]:
    """Processor seconds and bytes of something that is done once."""
    import tacit
    from tacit.release.ledger import FileLedger, read_ledger
    from tacit.release.ledger_file import Charge
    from tacit.runs.recounting import recount

    if what == "selection":
        scores = {"weight": torch.rand(10**8)}
        before, started = resident(), time.process_time()
        tacit.Support.top_k(scores, size=10**6)
        return {"processor_seconds": time.process_time() - started, "bytes": resident() - before}
    if what == "plan":
        tacit.make_plan("dp-sgd", epsilon=2, delta=1e-6, examples=10**5, batch_size=100, epochs=1)
        before, started = resident(), time.process_time()
        plan = tacit.make_plan(
            "dp-sgd", epsilon=1, delta=1e-9, examples=10**8, batch_size=1000, epochs=10, accountant="pld"
        )
        assert plan.steps == 10**6
        return {"processor_seconds": time.process_time() - started, "bytes": resident() - before}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger.jsonl"
        started = time.process_time()
        with FileLedger.create(path, run="a", plan_digest="p") as ledger:
            for first in range(0, 10**6, 1000):
                charges = [
                    Charge(index, index, "train", 1e-5, 1.0, 1.0, 1000, 10**6, True)
                    for index in range(first, first + 1000)
                ]
                ledger.charge_ahead(charges)
                for charge in charges:
                    ledger.charge(charge)
        written = time.process_time() - started
        before, started = resident(), time.process_time()
        charges = list(read_ledger(path).charges)
        recount({(1e-5, 1.0): len(charges)}, 1e-9)
        return {
            "processor_seconds": time.process_time() - started,
            "bytes": resident() - before,
            "writing_seconds": written,
        }


def elsewhere(part: str) -> Any:
    line = [sys.executable, "-m", "benchmarks.growth", "--part", part]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(part, found, flush=True)
    return found


def page(record: dict[str, Any]) -> str:
    """The figures as tables."""
    lines = [
        "# How a step grows",
        "",
        f"Written by `python -m benchmarks.growth`; load average {record['machine']['load_average'][0]:.0f} on "
        f"{record['machine']['cores']} cores while it ran. On a busy machine take the slopes, not single figures.",
        "",
        "![Time and memory of a step against its sizes](growth.png)",
        "",
    ]
    for axis, points in record["axes"].items():
        lines += [
            f"| {AXES[axis][0]} | processor ms of a step | MB |",
            "|--:|--:|--:|",
            *(
                f"| {p['size']:,.0f} | {1e3 * p['processor_seconds']:,.1f} | {p.get('bytes', 0) / 1e6:,.0f} |"
                for p in points
            ),
            "",
        ]
    titles = {
        "selection": "the largest 10⁶ of 10⁸ scores",
        "plan": "a plan of 10⁶ steps, PLD",
        "ledger": "reading a ledger of 10⁶ charges and recounting its ε",
    }
    lines += ["| once | processor s | MB |", "|---|--:|--:|"]
    lines += [
        f"| {titles[name]} | {p['processor_seconds']:,.1f} | {p.get('bytes', 0) / 1e6:,.0f} |"
        for name, p in record["once"].items()
    ]
    return "\n".join(lines) + "\n"


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(2, len(AXES), figsize=(3 * len(AXES), 5.5), sharex="col")
    for column, (axis, points) in enumerate(record["axes"].items()):
        sizes = [p["size"] for p in points]
        for row, (name, factor, label) in enumerate(
            (("processor_seconds", 1e3, "ms of a step"), ("bytes", 1e-6, "MB"))
        ):
            place = places[row][column]
            place.loglog(
                sizes, [max(1e-3, factor * p.get(name, 0)) for p in points], marker="o", color="#084594"
            )
            place.grid(alpha=0.3)
            if not column:
                place.set_ylabel(label)
        places[1][column].set_xlabel(AXES[axis][0], fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure every point, and write figures, page and picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_JSON, help="file to write; page and picture beside it"
    )
    parser.add_argument("--part", choices=(*AXES, *ONCE), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        print(json.dumps(once(options.part) if options.part in ONCE else points(options.part)))
        return
    axes = {axis: elsewhere(axis) for axis in AXES}
    record = {"machine": asdict(machine(1)), "axes": axes, "once": {name: elsewhere(name) for name in ONCE}}
    write_atomically(options.json, json.dumps(record, indent=1) + "\n")
    write_atomically(options.json.with_suffix(".md"), page(record))
    draw(record, options.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
