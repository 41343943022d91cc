"""Training on a folder of a million image files: `python -m benchmarks.stored_images`.

A script writes tiny grey images of two classes; then, each in a process of its own, a plain reader decodes some of them
in order, and a private logistic regression is trained on Poisson samples of all. Images a second are of the processor,
in parentheses by the clock; memory is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import ROOT, machine
from benchmarks.output import write_atomically

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "stored_images.json"
SIDE, CLASSES, FOLDERS, DIFFERENT = 8, 2, 50, 200


def write_images(folder: Path, count: int) -> None:
    """Grey images, brighter in the second class; some hundred different ones, over and over."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in range(CLASSES):
        contents = []
        for _ in range(DIFFERENT):
            pixels = np.clip(rng.normal(100 + 40 * kind, 40, (SIDE, SIDE)), 0, 255).astype(np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            contents.append(file.getvalue())
        for part in range(FOLDERS):
            place = folder / f"class {kind}" / f"{part:02}"
            place.mkdir(parents=True)
            for number in range(count // (CLASSES * FOLDERS)):
                (place / f"{number:06}.png").write_bytes(contents[number % DIFFERENT])


def plain(folder: Path, images: int) -> dict[str, Any]:
    """Images in order, decoded and thrown away."""
    from PIL import Image

    read = 0
    for file in islice(folder.rglob("*.png"), images):
        with Image.open(file) as opened:
            np.asarray(opened.convert("L"))
        read += 1
    return {"images": read}


def train(folder: Path, batch: int, steps: int) -> dict[str, Any]:
    """A private run on images that stay in their files."""
    import torch

    import tacit
    from tacit.data import read_images
    from tacit.losses import binary_cross_entropy

    started = time.process_time()
    task = read_images(folder, size=SIDE, grey=True)
    opened = time.process_time() - started
    count = len(task.train)  # type: ignore[arg-type]
    plan = tacit.make_plan(
        "dp-sgd", epsilon=3, delta=1e-7, examples=count, batch_size=batch, epochs=steps * batch / count
    )
    trainer = tacit.Trainer(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 1)),
        task.train,
        binary_cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
        held_out=task.held_out,
    )
    started = time.process_time()
    result = trainer.fit(progress=False)
    return {
        "images": result.steps * batch,
        "steps": result.steps,
        "training_images": count,
        "opening_processor_seconds": round(opened, 2),
        "step_processor_seconds": round((time.process_time() - started) / result.steps, 4),
        "held_out": result.measured,
    }


def run_part(options: argparse.Namespace) -> dict[str, Any]:
    started, before = time.perf_counter(), time.process_time()
    if options.part == "plain":
        found = plain(options.folder, options.batch * options.steps)
    else:
        found = train(options.folder, options.batch, options.steps)
    spent = time.process_time() - before
    return {
        **found,
        "seconds": round(time.perf_counter() - started, 2),
        "processor_seconds": round(spent, 2),
        "images_a_processor_second": round(found["images"] / spent),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Write, read, train, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored_images", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/tacit-stored-images"))
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    parser.add_argument("--keep", action="store_true", help="use the folder if it is there, and leave it")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(run_part(options)))
        return
    if not (options.keep and options.folder.exists()):
        write_images(options.folder, options.images)
    parts = {}
    try:
        for part in ("plain", "train"):
            line = [sys.executable, "-m", "benchmarks.stored_images", "--part", part]
            for name in ("folder", "batch", "steps"):
                line += [f"--{name}", str(getattr(options, name))]
            done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            parts[part] = json.loads(done.stdout.splitlines()[-1])
            print(f"{part}: {parts[part]}", flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(options.folder, ignore_errors=True)
    record = {"machine": asdict(machine(1)), "images": options.images, "batch": options.batch, "parts": parts}
    write_atomically(options.json, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
