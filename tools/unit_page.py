"""Rows or patients: what it costs to protect whole patients on diabetes130; writes docs/results/units.md.

TACIT_DATA=… python -m tools.unit_page          measures what docs/results/units.json does not hold yet, then writes
python -m tools.unit_page --page                 writes the page from docs/results/units.json alone
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tacit.jobs.run import Job, resolve, run_job
from tacit.jobs.settings import DataConfig, Experiment, PrivacyConfig, TrainingConfig
from tacit.jobs.setup import build_trainer
from tacit.plan import Spend, epsilon_of
from tacit.plan.relations import group_epsilons

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "docs" / "results" / "units.json"
PAGE = ROOT / "docs" / "results" / "units.md"
EPSILON = 3.0
GROUPS = (1, 2, 5, 10)

CASES: dict[str, dict[str, Any]] = {
    "row": {"split_by": "patient_nbr", "drop": ("patient_nbr",)},
    "unit": {"unit": "patient_nbr"},
    "unit, 4 rows": {"unit": "patient_nbr", "rows_per_unit": 4},
    "unit, 1 row": {"unit": "patient_nbr", "rows_per_unit": 1},
    "row, multiplied": {"split_by": "patient_nbr", "drop": ("patient_nbr",)},
}
"""What is trained: rows protected, patients protected (with caps), rows protected so well that ten of them are."""
SEEDS = {"row": (1, 2), "unit": (1, 2)}


def write_table(place: Path) -> Counter[int]:
    """The stays as a CSV file; how many patients have how many."""
    source = Path(os.environ["TACIT_DATA"]) / "tabular" / "diabetes130.csv.gz"
    stays: Counter[str] = Counter()
    with gzip.open(source, "rt", newline="") as read, place.open("w", newline="") as write:
        rows, out = csv.reader(read), csv.writer(write)
        out.writerow(next(rows)[1:])
        for row in rows:
            stays[row[1]] += 1
            out.writerow([*row[1:-1], int(row[-1] == "<30")])
    return Counter(stays.values())


def experiment(table: Path, case: str, seed: int, epsilon: float) -> Experiment:
    """One run, with the defaults of ``tacit train``."""
    return Experiment(
        data=DataConfig(str(table), target="readmitted", **CASES[case]),
        privacy=PrivacyConfig(epsilon=epsilon),
        training=TrainingConfig(seed=seed),
    )


def measured(job: Job) -> dict[str, Any]:
    """Figures on held-out stays."""
    result = run_job(job, command="compare", in_memory=True, progress=False).result
    return {
        **{name: result.measured[name] for name in ("auc", "auc_per_unit") if name in result.measured},
        "noise": job.plan.phases[0].noise_multiplier,
        "protected": job.plan.examples,
        "batch_size": job.plan.batch_size,
    }


def step_seconds(jobs: dict[str, Job], rounds: int = 60) -> dict[str, float]:
    """The median processor time of a step of each, taken in turns, so that both meet the same machine."""
    steps = {name: build_trainer(job.experiment, job.problem, job.plan).steps() for name, job in jobs.items()}
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name, iterator in steps.items():
            started = time.process_time()
            next(iterator)
            if number > 2:  # the first ones look at the model
                taken[name].append(time.process_time() - started)
    return {name: statistics.median(times) for name, times in taken.items()}


def multiplied(job: Job, size: int) -> float:
    """The ε for one row at which ``size`` rows together have ε = 3, with the steps and the sampling of the job."""
    phase, delta = job.plan.phases[0], job.plan.delta

    def together(noise: float) -> float:
        return dict(
            group_epsilons(
                [Spend(phase.sampling_rate, noise, phase.steps)], delta, "add-or-remove-one", [size]
            )
        )[size]

    low, high = phase.noise_multiplier, 4 * size * phase.noise_multiplier
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if together(middle) > EPSILON else (low, middle)
    return epsilon_of([Spend(phase.sampling_rate, high, phase.steps)], delta)


def measure() -> dict[str, Any]:
    """Everything, one run after the other, kept as soon as it is there."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(FOUND.read_text()) if FOUND.exists() else {"runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "stays.csv"
        found["patients_by_stays"] = {str(k): n for k, n in sorted(write_table(table).items())}
        base = resolve(experiment(table, "row", 1, EPSILON))
        if "groups" not in found:
            spends = base.plan.spends()
            found["groups"] = group_epsilons(spends, base.plan.delta, "add-or-remove-one", GROUPS)
            found["row_epsilon"] = multiplied(base, 10)
        for case in CASES:
            for seed in SEEDS.get(case, (1,)):
                name = f"{case} / {seed}"
                if name not in found["runs"]:
                    epsilon = found["row_epsilon"] if case == "row, multiplied" else EPSILON
                    found["runs"][name] = measured(resolve(experiment(table, case, seed, epsilon)))
                    print(name, found["runs"][name], flush=True)
                    FOUND.write_text(json.dumps(found, indent=1) + "\n")
        if "step_seconds" not in found:
            jobs = {
                name: resolve(experiment(table, name, 1, EPSILON))
                for name in CASES
                if name != "row, multiplied"
            }
            found["step_seconds"] = step_seconds(jobs)
            FOUND.write_text(json.dumps(found, indent=1) + "\n")
    return found


def page(found: dict[str, Any]) -> str:
    """The page about what was found."""
    stays = {int(k): n for k, n in found["patients_by_stays"].items()}
    patients, rows = sum(stays.values()), sum(k * n for k, n in stays.items())
    groups = dict(found["groups"])
    runs: dict[str, list[dict[str, Any]]] = {}
    for name, run in found["runs"].items():
        runs.setdefault(name.split(" / ")[0], []).append(run)

    seconds = found["step_seconds"] | {"row, multiplied": found["step_seconds"]["row"]}

    def mean(case: str, key: str) -> float:
        return sum(run[key] for run in runs[case]) / len(runs[case])

    def line(words: str, case: str, epsilon: str) -> str:
        runs_ = runs[case]
        return (
            f"| {words} | {epsilon} | {runs_[0]['noise']:.3g} | {mean(case, 'auc'):.4f} "
            f"| {1000 * seconds[case]:.0f} ms | {len(runs_)} |"
        )

    difference = 100 * (mean("row", "auc") - mean("unit", "auc"))
    slower = seconds["unit"] / seconds["row"]
    return "\n".join(
        [
            "# Protecting patients instead of stays",
            "",
            "Written by `python -m tools.unit_page` from `docs/results/units.json`, which it measures on diabetes130:",
            f"{rows:,} hospital stays of {patients:,} patients, {max(stays)} at most. {stays[1] / patients:.0%} of the "
            f"patients have one stay, {sum(n for k, n in stays.items() if k > 5) / patients:.1%} more than five. The "
            "task is to predict a readmission within 30 days. All runs are those of `tacit train stays.csv --target "
            "readmitted` with its defaults (the additive model, 400 steps); held-out patients are the same in all of "
            "them, and no patient is on both sides. Seeded runs, for comparison only.",
            "",
            "| what is protected | ε | noise σ | AUC per stay | processor time per step | runs |",
            "|---|--:|--:|--:|--:|--:|",
            line("one stay", "row", "3"),
            line("one patient (`--unit patient_nbr`)", "unit", "3"),
            line("one patient, `--rows-per-unit 4`", "unit, 4 rows", "3"),
            line("one patient, `--rows-per-unit 1`", "unit, 1 row", "3"),
            line(
                "ten stays of a patient, by multiplying",
                "row, multiplied",
                f"3 ({found['row_epsilon']:.2g} per stay)",
            ),
            "",
            f"Protecting whole patients costs {difference:.1f} points of AUC and {slower:.2f} times the time per step, "
            "at the same expected number of stays per step. A cap on the stays of a patient that take part in a step "
            "changes little here, because few patients have many; it bounds memory and time.",
            "",
            "## What multiplying would have cost",
            "",
            "A run that protects one stay at ε = 3 protects a patient with several stays less. At the same δ:",
            "",
            "| stays of a patient | ε of the run that protects one stay |",
            "|--:|--:|",
            *(f"| {size} | {epsilon:.3g} |" for size, epsilon in groups.items()),
            "",
            "More than a multiple: several rows that are drawn together in a step move it together. To promise ε = 3 "
            f"to a patient with ten stays, one stay would have to be protected at ε = {found['row_epsilon']:.2g}; the "
            "last row of the first table shows what that does to the model. And ten is not the most: this data has a "
            f"patient with {max(stays)} stays.",
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page from what was measured before")
    given = parser.parse_args()
    PAGE.write_text(page(json.loads(FOUND.read_text()) if given.page else measure()), encoding="utf-8")
    print(f"Written to {PAGE}.")
