"""How long the shortest commands take, and reading a table: `python -m benchmarks.first_lines`.

Everything runs in a process of its own, several times; the least processor time counts, which a busy machine changes
little. The table is a CSV file of 200,000 rows and 50 columns, numbers and words; loading Tacit and PyTorch is not
counted. pandas reads the same file beside it.
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

import numpy as np

from benchmarks.machine import ROOT, machine
from benchmarks.output import write_atomically

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "first_lines.json"
ROWS = 200_000
PLAN = "plan --method tp-topk --epsilon 3 --delta 1e-5 --examples 50000 --batch-size 1000 --epochs 40"
STARTS = {
    "import tacit": (["-c", "import tacit"], 0.3),
    "tacit --help": (["-m", "tacit", "--help"], 0.3),
    "tacit plan": (["-m", "tacit", *PLAN.split(), "--active-ratio", "0.4"], 1.0),
}
READING = {
    "read_table": ("from tacit.data import read_table", "read_table({path!r}, target='y')", 3.0),
    "pandas.read_csv": ("import pandas", "pandas.read_csv({path!r})", None),
}


def write_table(path: Path) -> None:
    """Thirty columns of decimals, ten of whole numbers, nine of words with gaps, and a target."""
    rng = np.random.default_rng(0)
    columns = {f"x{i}": [f"{v:.4f}" for v in rng.standard_normal(ROWS)] for i in range(30)}
    columns |= {f"n{i}": [str(v) for v in rng.integers(0, 100, ROWS)] for i in range(10)}
    columns |= {f"c{i}": rng.choice(["a", "bb", "ccc", "Köln", ""], ROWS).tolist() for i in range(9)}
    columns["y"] = np.where(rng.random(ROWS) < 0.5, "yes", "no").tolist()
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def started(line: list[str]) -> float:
    """Processor seconds of a process."""
    before = os.times()
    subprocess.run([sys.executable, *line], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def read(load: str, work: str) -> float:
    """Processor seconds of a line, in a process that has loaded what it needs."""
    code = f"import time\n{load}\nbegun = time.process_time()\n{work}\nprint(time.process_time() - begun)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_lines", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in (*STARTS, *READING)}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "table.csv"
        write_table(path)
        for _ in range(options.turns):
            for name, (line, _) in STARTS.items():
                times[name].append(started(line))
            for name, (load, work, _) in READING.items():
                times[name].append(read(load, work.format(path=str(path))))
    bars = {name: values[-1] for name, values in (*STARTS.items(), *READING.items())}
    found = {
        name: {"processor_seconds": round(min(taken), 3), "all": taken, "bar": bars[name]}
        for name, taken in times.items()
    }
    for name, figures in found.items():
        print(f"{figures['processor_seconds']:.2f} s  {name}  (bar {figures['bar']})")
    write_atomically(
        options.json, json.dumps({"machine": asdict(machine(1)), "found": found}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
