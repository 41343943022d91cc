"""Private models of raw texts: `python -m benchmarks.texts` writes docs/results/texts.md.

Two data sets, a linear model of their words, every method that is about rows of a table. The learning rate follows the
default rule, which was fitted on SST-2; IMDB judges it. Data is read from the directory that TACIT_DATA names.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import ROOT, Machine, machine
from benchmarks.output import caption, write_atomically
from tacit.data.bags import Bags
from tacit.data.table_task import labels
from tacit.data.text import sst2_texts
from tacit.jobs.defaults import default_batch_size, plan_of
from tacit.jobs.problem import Problem
from tacit.jobs.resolving import with_defaults
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.jobs.setup import build_trainer
from tacit.jobs.text_rows import TextRows

EPSILONS = (0.5, 1.0, 3.0)
FIGURES, PAGE = ROOT / "docs" / "results" / "texts.json", ROOT / "docs" / "results" / "texts.md"
CONTENDERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dense": ("all rows (DP-SGD, the default)", {"name": "dp-sgd"}, {}),
    "counted 8,000": ("8,000 rows by noisy counts", {"name": "counted-rows", "rows": 8000}, {}),
    "adafest": ("rows that every step chooses (AdaFEST)", {"name": "adafest"}, {}),
    "tp-topk": ("a tenth of the rows (TP-TopK)", {"name": "tp-topk", "active_ratio": 0.1}, {}),
    "pairs": ("all rows, pairs of words too", {"name": "dp-sgd"}, {}),
    "lazy": ("all rows, lazy noise", {"name": "dp-sgd"}, {"lazy_noise": True}),
    "counted 2,000": ("2,000 rows by noisy counts", {"name": "counted-rows", "rows": 2000}, {}),
    "counted 32,000": ("32,000 rows by noisy counts", {"name": "counted-rows", "rows": 32_000}, {}),
    "rate / 3": ("all rows, a third of the rule's rate", {"name": "dp-sgd"}, {"rate": 1 / 3}),
    "rate x 3": ("all rows, three times the rule's rate", {"name": "dp-sgd"}, {"rate": 3.0}),
}
GRID = {
    f"adafest {threshold:g}, {share:g}": (threshold, share)
    for threshold, share in itertools.product((0.5, 1.0, 1.5, 2.0, 3.0, 4.0), (0.5, 0.7, 0.8, 0.9))
}
"""Thresholds and shares of AdaFEST that were tried on SST-2, in steps as all others have, to find the default."""
CONTENDERS |= {
    name: (name, {"name": "adafest", "threshold": threshold, "selection_share": share}, {"steps": 300})
    for name, (threshold, share) in GRID.items()
}
ONCE = ("rate / 3", "rate x 3")
"""What is measured at one ε only: the same mechanism as another, other shares, or a check of the rule."""


ABOUT = {
    "imdb": (
        "## IMDB",
        "",
        "25,000 reviews to train on and 25,000 to measure on; their number makes for a standard error of 0.002 in AUC.",
    ),
    "sst2": (
        "## SST-2",
        "",
        "67,349 phrases to train on and 872 sentences to measure on, for a standard error of about 0.012 in AUC.",
    ),
}


@dataclass(frozen=True)
class Figure:
    """What one run came to; ``step_ms`` is processor time of one thread."""

    data: str
    contender: str
    epsilon: float
    seed: int
    auc: float
    accuracy: float
    loss: float
    step_ms: float


def read_rows(name: str, where: Path) -> TextRows:
    """The texts and labels of a data set, to train on and to measure on."""
    if name == "sst2":
        found = [(texts, marks) for texts, marks in sst2_texts(where, download=False)]
    else:
        found = [_imdb(where / "text" / f"imdb-{part}.tsv.xz") for part in ("train", "test")]
    parts = tuple((texts, labels(marks, binary=True)) for texts, marks in found)
    return TextRows(name, parts, ("negative", "positive"), True, (), ())


def _imdb(path: Path) -> tuple[list[str], np.ndarray]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [line.rstrip("\n").split("\t", 2) for line in file]
    return [line[2] for line in lines], np.array([int(line[0]) for line in lines])


def problem_of(rows: TextRows, *, pairs: bool) -> Problem:
    """The problem as tacit train would have it; short texts are filled up to fewer words, which changes no figure."""
    bags = Bags(length=(128 if rows.name == "sst2" else 512) * (1 + pairs), pairs=pairs)
    task = rows.task(DataConfig(), bags.ids, "", vocabulary=bags.vocabulary, bags=bags)
    return Problem(task.name, task.train, task.held_out, task.kind, (), task)


def measure(problem: Problem, contender: str, epsilon: float, seed: int) -> Figure:
    """Train and measure once."""
    _, method, special = CONTENDERS[contender]
    experiment = Experiment(
        method=MethodConfig(**method),
        privacy=PrivacyConfig(epsilon=epsilon),
        training=TrainingConfig(
            seed=seed,
            lazy_noise=bool(special.get("lazy_noise")),
            batch_size=default_batch_size(problem.examples) if "steps" in special else None,
        ),
    )
    experiment = with_defaults(experiment, problem)
    training = experiment.training
    rate = (training.learning_rate or 0.0) * special.get("rate", 1.0)
    experiment = replace(experiment, training=replace(training, learning_rate=rate))
    trainer = build_trainer(experiment, problem, plan_of(experiment, problem.examples))
    steps = trainer.steps()
    next(steps)  # looks at the model first
    begun, taken = time.process_time(), 0
    for _ in steps:
        taken += 1
    spent = time.process_time() - begun
    found = trainer.evaluate()
    return Figure(
        problem.name,
        contender,
        epsilon,
        seed,
        found["auc"],
        found["balanced_accuracy"],
        found["loss"],
        1000 * spent / taken,
    )


def page(figures: list[Figure], source: str) -> str:
    """The page in Markdown."""
    lines = [
        "# Raw texts",
        "",
        "Is a film review positive? A linear model of hashed words (2¹⁸ buckets), as `tacit train reviews.csv",
        "--text review --target label` has it with its defaults. Written by `python -m benchmarks.texts`.",
        "The rule for the learning rate was fitted on SST-2, with different numbers of its phrases; nothing was",
        "fitted on IMDB. AUC, and balanced accuracy in brackets; one seed, or the mean over several. An empty cell was",
        "not measured. Time is processor time of one thread.",
        "",
    ]
    for data in ("imdb", "sst2"):
        own = [f for f in figures if f.data == data]
        if not own:
            continue
        lines += [*ABOUT[data], ""]
        lines += [
            "| | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " | ms per step |",
            "|---|---:|---:|---:|---:|",
        ]
        for contender, (words, *_) in CONTENDERS.items():
            runs = [f for f in own if f.contender == contender]
            if runs:
                cells = [_cell([f for f in runs if f.epsilon == epsilon]) for epsilon in EPSILONS]
                time_of = sorted(f.step_ms for f in runs)[len(runs) // 2]
                lines.append(f"| {words} | {' | '.join(cells)} | {time_of:.0f} |")
        lines += ["", *_said(own), ""]
    return "\n".join([*lines, f"*{source}*", ""])


def _cell(runs: list[Figure]) -> str:
    if not runs:
        return ""
    auc, accuracy = (sum(getattr(f, name) for f in runs) / len(runs) for name in ("auc", "accuracy"))
    return f"{auc:.4f} ({100 * accuracy:.1f} %)"


def _said(figures: list[Figure]) -> list[str]:
    """What the figures say, computed from them."""
    dense = {f.epsilon: f.auc for f in figures if f.contender == "dense"}
    gaps = {
        name: max(
            (dense[f.epsilon] - f.auc for f in figures if f.contender == name and f.epsilon in dense),
            default=None,
        )
        for name in CONTENDERS
        if name not in ("dense", *ONCE)
    }
    parts = [
        f"{CONTENDERS[name][0]}: {'at most ' * (gap > 0)}{abs(gap):.4f} {'below' if gap > 0 else 'or more above'}"
        for name, gap in gaps.items()
        if gap is not None
    ]
    return [f"Beside all rows, in AUC, at the ε that were measured: {'; '.join(parts)}."] if parts else []


def main() -> None:
    """Measure what is not on record yet, and write the page after every run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts", description=__doc__)
    parser.add_argument("--data", nargs="+", choices=("imdb", "sst2"), default=["imdb", "sst2"])
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(given.figures.read_text())["figures"] if given.figures.exists() else []
    figures = [Figure(**f) for f in known]
    facts = machine(1)
    write(given, facts, figures)
    for name in given.data:
        rows: TextRows | None = None
        problems: dict[bool, Problem] = {}
        for seed, contender, epsilon in itertools.product(range(given.seeds), given.only, given.epsilons):
            done = {(f.data, f.contender, f.epsilon, f.seed) for f in figures}
            if (name, contender, epsilon, seed) in done or (contender in ONCE and epsilon != 1.0):
                continue
            pairs = contender == "pairs"
            if pairs not in problems:
                rows = rows or read_rows(name, Path(os.environ["TACIT_DATA"]))
                problems = {pairs: problem_of(rows, pairs=pairs)}
            figures.append(measure(problems[pairs], contender, epsilon, seed))
            print(figures[-1], flush=True)
            write(given, facts, figures)


def write(given: argparse.Namespace, facts: Machine, figures: list[Figure]) -> None:
    """The figures and the page, as far as they go."""
    content = {"machine": asdict(facts), "figures": [asdict(f) for f in figures]}
    write_atomically(given.figures, json.dumps(content, indent=1) + "\n")
    write_atomically(given.page, page(figures, caption(facts)))


if __name__ == "__main__":
    main()
