"""Training on a folder of Parquet files that is larger than memory: `python -m benchmarks.stored_rows`.

A script writes the rows; then, each in a process of its own, a plain reader goes through all files in order, the same
reader encodes every row, and a private logistic regression is trained on Poisson samples. Rows a second are rows that
were handed over, by the clock and by processor time; memory is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine
from benchmarks.output import write_atomically

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "stored_rows.json"
NUMBERS = 8
CITIES = ("Cairo", "Lagos", "Lima", "Oslo", "Rome", "Seoul")


def write_rows(folder: Path, rows: int, files: int, group: int) -> None:
    """Numbers in single precision, a category and a target that depends on them."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True)
    for number in range(files):
        draw = np.random.default_rng(number)
        count = rows // files
        x = draw.standard_normal((NUMBERS, count), dtype=np.float32)
        city = draw.integers(len(CITIES), size=count, dtype=np.int8)
        y = (x[0] + x[1] + 0.3 * city + draw.standard_normal(count, dtype=np.float32) > 1).astype(np.int8)
        table = pyarrow.table(
            {
                **{f"x{place}": values for place, values in enumerate(x)},
                "city": pyarrow.DictionaryArray.from_arrays(city, list(CITIES)),
                "y": y,
            }
        )
        pyarrow.parquet.write_table(table, folder / f"part-{number:04}.parquet", row_group_size=group)


def schema() -> Any:
    from tacit.data import Category, Number, Schema, Target

    numbers = {f"x{place}": Number(-3, 3, missing=False) for place in range(NUMBERS)}
    return Schema(Target("y", "binary", ("0", "1")), {**numbers, "city": Category(CITIES, missing=False)})


def plain(folder: Path) -> dict[str, Any]:
    """Every row group in order, decoded and thrown away."""
    import pyarrow.parquet

    rows = 0
    for file in sorted(folder.glob("*.parquet")):
        with pyarrow.parquet.ParquetFile(file) as opened:
            for group in range(opened.num_row_groups):
                rows += opened.read_row_group(group).num_rows
    return {"rows": rows}


def in_order(folder: Path) -> dict[str, Any]:
    """Every row group in order, and every row encoded as a model takes it."""
    from tacit.data import read_folder

    rows = read_folder(folder, schema=schema(), held_out=0.0).train
    groups = rows.groups  # type: ignore[attr-defined]
    for number, end in enumerate(groups.ends.tolist()):
        start = groups.start(number)
        batch = rows.gather(np.arange(start, end))  # type: ignore[attr-defined]
        for first in range(0, end - start, 10_000):
            batch(first, min(first + 10_000, end - start))
    return {"rows": groups.rows}


def train(folder: Path, batch_size: int, steps: int, memory: int) -> dict[str, Any]:
    """A private run by a plan, in memory but for the rows."""
    import torch

    import tacit
    from tacit.data import read_folder
    from tacit.losses import binary_cross_entropy

    started = time.perf_counter()
    task = read_folder(folder, schema=schema(), held_out=0.02, memory=memory)
    opened = time.perf_counter() - started
    rows = task.train
    reading = [0.0]
    plain_gather: Callable[..., Any] = rows.gather  # type: ignore[attr-defined]

    def timed(positions: Any) -> Any:
        begun = time.perf_counter()
        try:
            return plain_gather(positions)
        finally:
            reading[0] += time.perf_counter() - begun

    rows.gather = timed  # type: ignore[attr-defined]
    count = len(rows)  # type: ignore[arg-type]
    plan = tacit.make_plan(
        "dp-sgd",
        epsilon=1,
        delta=1e-9,
        examples=count,
        batch_size=batch_size,
        epochs=steps * batch_size / count,
    )
    trainer = tacit.Trainer(
        torch.nn.Linear(task.input_shape[0], 1),
        rows,
        binary_cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
        held_out=task.held_out,
    )
    result = trainer.fit(progress=False)
    return {
        "rows": result.steps * batch_size,
        "steps": result.steps,
        "batch_size": batch_size,
        "training_rows": count,
        "opening_seconds": round(opened, 2),
        "reading_seconds": round(reading[0], 2),
        "rows_ahead": rows.rows_ahead,  # type: ignore[attr-defined]
        "held_out": result.measured,
    }


def measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """One part in a process of its own, with its time and its largest size."""
    line = [sys.executable, "-m", "benchmarks.stored_rows", "--part", part]
    for name in ("folder", "rows", "files", "group", "batch", "steps", "memory"):
        line += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{part}: {found}", flush=True)
    return found


def run_part(options: argparse.Namespace) -> dict[str, Any]:
    started, before = time.perf_counter(), time.process_time()
    match options.part:
        case "write":
            write_rows(options.folder, options.rows, options.files, options.group)
            found: dict[str, Any] = {"rows": options.rows}
        case "plain":
            found = plain(options.folder)
        case "in order":
            found = in_order(options.folder)
        case _:
            found = train(options.folder, options.batch, options.steps, options.memory)
    seconds, processor = time.perf_counter() - started, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        **found,
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "rows_a_second": round(found["rows"] / seconds),
        "peak_bytes": peak,
    }


def main() -> None:
    """Write, read, train, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored_rows", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("/tmp/tacit-stored-rows"), help="where rows are written"
    )
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--group", type=int, default=250_000, help="rows of a row group")
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--memory", type=int, default=512 << 20, help="bytes of rows that are held")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(run_part(options)))
        return
    if options.folder.exists():
        raise SystemExit(f"{options.folder} exists; choose another --folder.")
    try:
        parts = {part: measured(part, options) for part in ("write", "plain", "in order", "train")}
        size = sum(file.stat().st_size for file in options.folder.iterdir())
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    about = {"rows": options.rows, "files": options.files, "row_group": options.group, "bytes": size}
    record = {
        "machine": asdict(machine(os.cpu_count() or 1)),
        **about,
        "memory": options.memory,
        "parts": parts,
    }
    write_atomically(options.json, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
