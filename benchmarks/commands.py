"""Commands on a table of 10,000 rows, and how fast new rows are answered: `python -m benchmarks.commands`.

Commands run one after the other in processes of their own, as somebody types them. Seconds are processor time, which a
busy machine does not change, and by the clock. Training is not measured; everything else should take at most 5 seconds.
Rows a second are those of `tacit.load(RUN).predict` on a file and on columns in memory; at least 100,000 are wanted.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.output import write_atomically

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "commands.json"
ROWS, ANSWERED = 10_000, 200_000
TARGET = "renewed"
LINES = (
    "budget init p.csv --epsilon 3 --delta 1e-5",
    "data schema p.csv --target renewed --out schema.toml",
    "data show p.csv --target renewed",
    "train p.csv --target renewed --schema schema.toml --epsilon 2 --epochs 1 --dry-run",
    "train p.csv --target renewed --schema schema.toml --epsilon 2 --epochs 1 --quiet --out run",
    "verify run",
    "predict run new.csv --out scores.csv",
    "export run --out model.tacit",
    "verify model.tacit",
    "predict model.tacit new.csv --out again.csv",
    "diagnose run",
    "report run --out report.html",
    "budget show p.csv --page budget.html",
)


def write_table(path: Path, rows: int, seed: int) -> None:
    """A table of numbers, categories, dates and gaps."""
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["age", "bmi", "city", "since", "visits", TARGET])
        for _ in range(rows):
            age, bmi = rng.randint(18, 90), round(rng.gauss(27, 5), 2)
            since = f"20{rng.randint(10, 24)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            renews = (age - 50) / 15 + (bmi - 27) / 5 + rng.gauss(0, 1) > 0
            city = rng.choice(["Köln", "Paris", "Oslo", ""])
            out.writerow([age, bmi, city, since, rng.randint(0, 40), "yes" if renews else "no"])


def timed(line: str, folder: Path) -> dict[str, Any]:
    """Seconds of one command, of the processor and by the clock."""
    before, started = os.times(), time.perf_counter()
    environment = {**os.environ, "TACIT_BUDGETS": str(folder / "budgets"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tacit", *line.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"tacit {line} failed: {done.stderr.strip().splitlines()[-1:]}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "command": line,
        "processor_seconds": round(spent, 2),
        "seconds": round(time.perf_counter() - started, 2),
    }


def rows_a_second(folder: Path) -> dict[str, int]:
    """How many rows are answered in a second of the processor, from a file and from columns in memory."""
    from tacit import load

    write_table(folder / "many.csv", ANSWERED, seed=3)
    with (folder / "many.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    columns = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    predictor = load(folder / "run")
    predictor.predict(folder / "new.csv")
    found = {}
    for name, data in (("file", folder / "many.csv"), ("columns", columns)):
        started = time.process_time()
        assert len(predictor.predict(data)) == ANSWERED
        found[name] = round(ANSWERED / (time.process_time() - started))
    return found


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands", description=__doc__)
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="file to write")
    target = parser.parse_args().json
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder / "p.csv", ROWS, seed=1)
        write_table(folder / "new.csv", ROWS, seed=2)
        results = []
        for line in LINES:
            results.append(timed(line, folder))
            print(f"{results[-1]['processor_seconds']:6.2f} s  tacit {line}", flush=True)
        speed = rows_a_second(folder)
    for name, rate in speed.items():
        print(f"{rate:,} rows a second from {name}")
    record = {"machine": asdict(machine(1)), "rows": ROWS, "commands": results, "rows_a_second": speed}
    write_atomically(target, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
