"""What `tacit finetune` reaches on folders of images without any settings: `python -m benchmarks.starts`.

Images of the data sets in TACIT_DATA are written to folders with train/ and test/, and fine-tuned by the command line:
from MobileNetV2 and from data-free features, with rates by rule, and as before there was a rule (5 epochs at rate 1).
Rates were fitted on the first three data sets; Fashion-MNIST judges.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine
from benchmarks.output import write_atomically
from tacit.data import load

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "starts.json"
GREY = ("pneumoniamnist", "fmnist")
BEFORE = "--epochs 5 --learning-rate 1 --momentum 0 --clip-norm 1 --schedule constant"
WAYS = {"mobilenet-v2": "", "mobilenet-v2, as before": BEFORE, "scattering": "--features scattering"}


def write_folder(folder: Path, dataset: str, train: int, test: int) -> None:
    """The first images of a data set as files: train/CLASS/NUMBER.png and test/CLASS/NUMBER.png."""
    from PIL import Image

    task = load(dataset)
    low, high = task.value_range or (0.0, 1.0)
    for name, part, count in (("train", task.train, train), ("test", task.held_out, test)):
        images, labels = part.tensors  # type: ignore[union-attr]
        chosen = np.random.default_rng(0).permutation(len(images))[:count]
        for place in chosen.tolist():
            pixels = ((images[place] - low) / (high - low) * 255).round().byte().numpy().transpose(1, 2, 0)
            kind = folder / name / f"class {int(labels[place])}"
            kind.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.squeeze()).save(kind / f"{place}.png")


def finetune(folder: Path, options: str, out: Path) -> dict[str, Any]:
    """What one run of the command answers."""
    command = [
        sys.executable,
        "-m",
        "tacit",
        "finetune",
        str(folder),
        "--out",
        str(out),
        "--json",
        *options.split(),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Fine-tune, print, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    parser.add_argument("--datasets", default="cifar10,aptos,pneumoniamnist,fmnist")
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--epsilons", default="1,8")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by ;")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for dataset in asked.datasets.split(","):
            folder = Path(place) / dataset
            write_folder(folder, dataset, asked.train, asked.test)
            for way in asked.ways.split(";"):
                for epsilon in asked.epsilons.split(","):
                    found = []
                    for seed in range(asked.seeds):
                        options = f"{WAYS[way]} --epsilon {epsilon} --seed {seed}"
                        grey = " --grey" if dataset in GREY else ""
                        record = finetune(
                            folder, options + grey, Path(place) / f"{dataset} {len(rows)} {seed}"
                        )
                        measure = "auc" if "auc" in record["held_out"] else "accuracy"
                        found.append(record["held_out"][measure])
                    rows.append(
                        {
                            "data": dataset,
                            "way": way,
                            "epsilon": float(epsilon),
                            "measure": measure,
                            "found": found,
                        }
                    )
                    print(f"{dataset}, {way}, ε = {epsilon}: {measure} {np.mean(found):.3f}", flush=True)
    settings = {"train": asked.train, "test": asked.test}
    record = {"machine": asdict(machine(1)), **settings, "rows": rows}
    write_atomically(asked.json, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
