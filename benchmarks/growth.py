"""How a private step grows: `python -m benchmarks.growth`.

Time and memory of one step against the number of coordinates d, of active ones k, the batch, the length of a
sequence, the rows of a unit and the number of units; parameters in a memory-mapped file, with examples one at a time;
then what is done once at a large size: a selection at d = 10⁸, a plan, and reading and recounting a ledger of 10⁶
steps. Every axis is measured in a process of its own. Time is the least processor time of a step over some turns.
Memory is the largest anonymous resident size during a step, beyond that before the model was made; during the first
step it is larger, because the model is looked at in double precision.
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

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.machine import ROOT, machine
from benchmarks.output import write_atomically
from benchmarks.peak import idle_anonymous, peak_anonymous, return_freed_blocks

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "growth.json"
PAGE = ROOT / "docs" / "results" / "growth.md"
TURNS = 5
AXES: dict[str, tuple[str, list[int]]] = {
    "d": ("coordinates, all active", [10**4, 10**5, 10**6, 10**7]),
    "d-sparse": ("coordinates, 10,000 active", [10**5, 10**6, 10**7, 10**8]),
    "k": ("active of 10⁶ coordinates", [10**2, 10**3, 10**4, 10**5, 10**6]),
    "batch": ("examples in a batch", [16, 64, 256, 1024, 4096]),
    "length": ("tokens of a sequence", [32, 64, 128, 256, 512]),
    "unit": ("rows of a unit, of 512 in a batch", [1, 2, 4, 16, 64]),
    "units": ("units of three rows in the data, 64 in a batch", [10**3, 10**4, 10**5, 10**6]),
    "mapped": ("coordinates in a mapped file, 10,000 active, one example at a time", [10**7, 10**8, 10**9]),
}
LARGE = {"d-sparse": 10**8, "mapped": 10**9}
"""Measured with --large only: they take gigabytes."""
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
        model, batch = mlp(10**6 if axis == "k" else size), 32
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


class Mapped(nn.Module):
    """A model of about so many coordinates whose large weight lies in a file."""

    def __init__(self, coordinates: int, path: Path) -> None:
        super().__init__()
        width = round(coordinates**0.5)
        rng = np.random.default_rng(0)
        with path.open("wb") as file:
            for _ in range(width):
                row = (rng.random(width, dtype=np.float32) - 0.5) * np.float32(2 / width**0.5)
                file.write(row.tobytes())
        self.first, self.last = nn.Linear(100, width), nn.Linear(width, 10)
        self.middle = nn.Linear(width, width, bias=False, device="meta")
        stored = torch.from_file(str(path), shared=True, size=width * width, dtype=torch.float32)
        self.middle.weight = nn.Parameter(stored.view(width, width))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(torch.relu(self.middle(torch.relu(self.first(x)))))
        return answer


def mapped(size: int, path: Path) -> Callable[[], Any]:
    """A step on parameters in a file: examples come one at a time, so nothing has to be looked for."""
    import tacit
    from tacit.losses import cross_entropy

    model = Mapped(size, path)
    private = tacit.PrivateStep(
        model,
        cross_entropy,
        support=tacit.Support.random(model, size=10_000, seed=0),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=2,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.01, momentum=0.9),
        isolation="construction",
    )
    rows = (torch.randn(2, 100), torch.randint(10, (2,)))
    return lambda: private.step(rows)


def among(units: int) -> Callable[[], Any]:
    """A step on 64 of so many units of three rows: the draw, the rows and the step."""
    import tacit
    from tacit.losses import cross_entropy

    model, draw = mlp(10**4), torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(3 * units, 100, generator=draw), torch.randint(10, (3 * units,), generator=draw)
    )
    plan = tacit.make_plan(
        "dp-sgd",
        epsilon=8,
        delta=1e-7,
        units=units,
        batch_size=64,
        epochs=10_000 * 64 / units,
    )
    trainer = tacit.Trainer(
        model,
        data,
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.01),
        units=np.repeat(np.arange(units), 3),
    )
    steps = iter(trainer.steps())
    return lambda: next(steps)


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def points(axis: str, sizes: list[int]) -> list[dict[str, float]]:
    """Time and memory at the sizes of an axis."""
    return_freed_blocks()
    stepping("batch", 16)()
    found = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        for size in sizes:
            before, made = idle_anonymous(), []

            def start(size: int = size, made: list[Callable[[], Any]] = made) -> None:
                if axis == "mapped":
                    made.append(mapped(size, Path(place) / f"{size}"))
                else:
                    made.append(among(size) if axis == "units" else stepping(axis, size))
                made[0]()

            first = peak_anonymous(start) - before
            step = made.pop()
            step()
            times = []
            for _ in range(TURNS):
                began = time.process_time()
                step()
                times.append(time.process_time() - began)
            found.append(
                {
                    "size": size,
                    "processor_seconds": min(times),
                    "bytes": peak_anonymous(lambda step=step: step()) - before,  # type: ignore[misc]
                    "first_bytes": first,
                }
            )
            del step
    return found


def once(what: str) -> dict[str, float]:
    """Processor seconds and bytes of something that is done once."""
    import tacit
    from tacit.release.ledger import FileLedger, read_ledger
    from tacit.release.ledger_file import Charge
    from tacit.runs.recounting import recount

    if what == "selection":
        scores = {"weight": torch.rand(10**8)}
        before, started = idle_anonymous(), time.process_time()
        peak = peak_anonymous(lambda: tacit.Support.top_k(scores, size=10**6))  # type: ignore[arg-type, return-value]
        return {"processor_seconds": time.process_time() - started, "bytes": peak - before}
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


def elsewhere(part: str, large: bool) -> Any:
    line = [sys.executable, "-m", "benchmarks.growth", "--part", part, *(["--large"] if large else [])]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(part, found, flush=True)
    return found


def page(record: dict[str, Any]) -> str:
    """The figures as tables."""
    about = record["machine"]
    lines = [
        "# How a step grows",
        "",
        f"Written by `python -m benchmarks.growth` on {about['date'][:10]} ({about['cpu']}, one thread; load average "
        f"{about['load_average'][0]:.0f} on {about['cores']} cores). Times are processor time, the least of {TURNS} "
        "steps; on a busy machine take the slopes, not single figures. Memory is what a step holds at most, model "
        "included; the first step takes more, because the model is "
        "[looked at](../concepts/architecture.md#the-probe) in double precision.",
        "",
        *(
            [f"Of that day: {', '.join(record['again'])}. The other figures are of an earlier run.", ""]
            if record.get("again")
            else []
        ),
        "![Time and memory of a step against its sizes](growth.png)",
        "",
    ]
    for axis, points in record["axes"].items():
        lines += [
            f"| {AXES[axis][0]} | ms of a step | MB | MB of the first step |",
            "|--:|--:|--:|--:|",
            *(
                f"| {p['size']:,.0f} | {1e3 * p['processor_seconds']:,.1f} | {p['bytes'] / 1e6:,.0f} | "
                f"{p['first_bytes'] / 1e6:,.0f} |"
                for p in points
            ),
            "",
        ]
    titles = {
        "selection": "the largest 10⁶ of 10⁸ scores (400 MB)",
        "plan": "a plan of 10⁶ steps, PLD",
        "ledger": "reading a ledger of 10⁶ charges and recounting its ε",
    }
    lines += ["| once | processor s | MB beyond what was there |", "|---|--:|--:|"]
    lines += [
        f"| {titles[name]} | {p['processor_seconds']:,.1f} | {p.get('bytes', 0) / 1e6:,.0f} |"
        for name, p in record["once"].items()
    ]
    lines += [
        "",
        "**10⁹ coordinates.** A step holds the model and what its k active coordinates need. The look at the first "
        "step compares gradients of single examples in double precision, which takes about 10 times the parameters: "
        '40 GB at 10⁹. With `isolation="construction"` there is no look: examples come one at a time, and a step '
        "holds one or two gradients beside the model. The parameters may then lie in a memory-mapped file "
        "(`torch.from_file(shared=True)`), which does not count as memory above. The support, the noise and the "
        "optimizer's state have k numbers. `--large` measures these sizes.",
    ]
    return "\n".join(lines) + "\n"


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = len(record["axes"])
    figure, places = pyplot.subplots(2, shown, figsize=(2.6 * shown, 5.5), sharex="col")
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
        places[1][column].set_xlabel(AXES[axis][0].replace(", ", ",\n"), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def sizes_of(axis: str, large: bool) -> list[int]:
    return [size for size in AXES[axis][1] if large or size < LARGE.get(axis, size + 1)]


def main() -> None:
    """Measure every point, and write figures, page and picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write, with the picture beside it")
    parser.add_argument("--large", action="store_true", help="sizes that take gigabytes, too")
    parser.add_argument(
        "--again", nargs="+", help="measure these parts only, and keep the others as recorded"
    )
    parser.add_argument("--part", choices=(*AXES, *ONCE), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        sizes = sizes_of(options.part, options.large) if options.part in AXES else []
        print(json.dumps(points(options.part, sizes) if sizes else once(options.part)))
        return
    kept = json.loads(options.json.read_text()) if options.again else {"axes": {}, "once": {}}
    wanted = options.again or [*AXES, *ONCE]
    found = {part: elsewhere(part, options.large) for part in wanted}
    every = {**kept["axes"], **kept["once"], **found}
    record = {
        "machine": asdict(machine(1)),
        "again": options.again or [],
        "axes": {axis: every[axis] for axis in AXES if axis in every},
        "once": {name: every[name] for name in ONCE if name in every},
    }
    write_atomically(options.json, json.dumps(record, indent=1) + "\n")
    write_atomically(options.page, page(record))
    draw(record, options.page.with_suffix(".png"))


if __name__ == "__main__":
    main()
