"""Run the attack, print what each part found, and write docs/attack.md."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import tools.attack
from tools.attack.jobs import Job, all_jobs, run, violations
from tools.attack.page import page

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "docs" / "attack" / "attack.json"
PAGE = ROOT / "docs" / "attack.md"
OVERHEAD = 0.8
"""Share of the time that searches get; the rest goes to building models and to parts that take as long as they take."""


def line(record: dict[str, Any]) -> str:
    """One line for the terminal."""
    name = Job(record["kind"], record["target"], record["variant"]).name
    if "unsupported" in record:
        return f"{'–':>12s}  {name}: {record['unsupported'][:60]}"
    if record["kind"] == "trainer":
        return f"{record['epsilon']:12.4g}  {name}: seen {record['seen']}, false {record['false_alarms']}"
    how = record.get("what") or f"{record.get('attack')} | {record.get('setting')} | {record['evaluations']}"
    return f"{record['ratio']:12.6g}  {name}: {how}"


def main() -> int:
    """Run all parts; the exit code says whether the bound held."""
    parser = argparse.ArgumentParser(description=(tools.attack.__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="time for everything")
    parser.add_argument(
        "--evaluations", type=int, help="rows per search, in place of time: the same every time"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="write docs/attack.md and docs/attack/attack.json"
    )
    given = parser.parse_args()
    jobs = [job for job in all_jobs() if given.only in job.name]
    share = sum(job.share for job in jobs) or 1.0
    unit = None if given.evaluations is not None else given.seconds * given.jobs * OVERHEAD / share
    print(f"{len(jobs)} parts, seed {given.seed}", flush=True)
    began, found = time.monotonic(), list[dict[str, Any]]()
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        parts = [
            pool.submit(run, job, given.seed, None if unit is None else unit * job.share, given.evaluations)
            for job in jobs
        ]
        for part in as_completed(parts):
            for record in part.result():
                print(line(record), flush=True)
                found.append(record)
    facts = {
        "seed": given.seed,
        "minutes": (time.monotonic() - began) / 60,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }
    if given.write:
        FOUND.parent.mkdir(exist_ok=True)
        FOUND.write_text(json.dumps({"facts": facts, "found": found}, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(found, facts), encoding="utf-8")
    broken = violations(found)
    print(f"{len(found) - len(broken)} held, {len(broken)} did not")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
