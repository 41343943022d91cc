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
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import ROOT, Machine, machine
from benchmarks.output import caption, short, write_atomically
from tacit.data.bags import Bags
from tacit.data.table_task import labels
from tacit.data.text import sst2_texts
from tacit.jobs.defaults import default_batch_size, plan_of
from tacit.jobs.problem import Problem
from tacit.jobs.resolving import with_defaults
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.jobs.setup import build_trainer
from tacit.jobs.text_rows import TextRows
from tacit.models.config import ModelConfig

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
CONTENDERS |= {
    f"embedding, {name}": (f"embeddings: {title}", method, {**special, "model": "text-embedding"})
    for name, (title, method, special) in CONTENDERS.items()
    if name in ("dense", "lazy", "counted 8,000", "adafest", "tp-topk")
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
ONCE = ("lazy", "rate / 3", "rate x 3", "embedding, lazy")
"""What is measured at one ε only: the same mechanism as another, or a check of the rule."""


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
    """What one run came to; ``step_ms`` is processor time of one thread, ``commit`` that of the code."""

    data: str
    contender: str
    epsilon: float
    seed: int
    auc: float
    accuracy: float
    loss: float
    step_ms: float
    commit: str = ""


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


def measure(problem: Problem, contender: str, epsilon: float, seed: int, commit: str) -> Figure:
    """Train and measure once, with the code of ``commit``."""
    _, method, special = CONTENDERS[contender]
    experiment = Experiment(
        model=ModelConfig(special.get("model")),
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
        commit,
    )


def origin(facts: Machine, figures: list[Figure]) -> str:
    """Where the figures come from: the machine of the latest, and the commits of all."""
    commits = list(dict.fromkeys(figure.commit for figure in figures if figure.commit))
    return f"{caption(facts, commits)} (the latest)" if len(commits) > 1 else caption(facts, commits)


def page(figures: list[Figure], source: str) -> str:
    """The page in Markdown."""
    lines = [
        "# Raw texts",
        "",
        "Is a film review positive? A linear model of hashed words (2¹⁸ buckets), as `tacit train reviews.csv",
        "--text review --target label` has it with its defaults; rows named *embeddings* are `--model text-embedding`.",
        "Written by `python -m benchmarks.texts`. The rules for the learning rate and for AdaFEST's threshold were",
        "fitted on SST-2; nothing was fitted on IMDB. AUC with one standard deviation over seeds, and their number in",
        "brackets. What is not in a table was not measured. Time is processor time of one thread.",
        "",
    ]
    for data in ("imdb", "sst2"):
        own = [f for f in figures if f.data == data and f.contender not in GRID]
        if not own:
            continue
        lines += [*ABOUT[data], ""]
        lines += [
            "| | "
            + " | ".join(f"ε = {e:g}" for e in EPSILONS)
            + " | balanced accuracy, ε = 1 | ms per step |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for contender, (words, *_) in CONTENDERS.items():
            runs = [f for f in own if f.contender == contender]
            if runs:
                cells = [_cell([f for f in runs if f.epsilon == epsilon]) for epsilon in EPSILONS]
                right = [f.accuracy for f in runs if f.epsilon == 1.0]
                accuracy = f"{100 * statistics.mean(right):.1f} %" if right else ""
                time_of = statistics.median(f.step_ms for f in runs)
                lines.append(f"| {words} | {' | '.join(cells)} | {accuracy} | {time_of:.0f} |")
        lines += ["", *_said(own), "", *_unmeasured(own)]
    return "\n".join([*lines, *_grid(figures), f"*{source}*", ""])


def _cell(runs: list[Figure]) -> str:
    if not runs:
        return ""
    values = [f.auc for f in runs]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread} ({len(values)})"


def _said(figures: list[Figure]) -> list[str]:
    """What the figures say, computed from them: differences to all rows, seed by seed, at the worst ε."""
    found = {(f.contender, f.epsilon, f.seed): f.auc for f in figures}
    lines = []
    for name, (words, *_) in CONTENDERS.items():
        base = "embedding, dense" if name.startswith("embedding") else "dense"
        if name in (base, "rate / 3", "rate x 3"):
            continue
        gaps = []
        for epsilon in EPSILONS:
            pairs = [
                (found[base, epsilon, seed], auc)
                for (who, at, seed), auc in found.items()
                if who == name and at == epsilon and (base, epsilon, seed) in found
            ]
            if pairs:
                gaps.append((statistics.mean(other - dense for dense, other in pairs), epsilon, len(pairs)))
        if gaps:
            gap, epsilon, seeds = min(gaps)
            lines.append(
                f"- {words}: {gap:+.4f} at ε = {epsilon:g}, over {seeds} {'seed' if seeds == 1 else 'seeds'}"
            )
    return ["Beside all rows, at the ε that suits each least, in AUC:", "", *lines] if lines else []


def _unmeasured(figures: list[Figure]) -> list[str]:
    """Which ε were left out of rows that are meant to have all."""
    gaps = []
    for name, (words, *_) in CONTENDERS.items():
        known = {f.epsilon for f in figures if f.contender == name}
        left_out = [f"{epsilon:g}" for epsilon in EPSILONS if epsilon not in known]
        if known and left_out and name not in ONCE:
            gaps.append(f"{words} at ε = {', '.join(left_out)}")
    return [f"Not measured: {'; '.join(gaps)}.", ""] if gaps else []


def _grid(figures: list[Figure]) -> list[str]:
    """What was tried for AdaFEST on SST-2."""
    found = {(f.contender, f.epsilon): f.auc for f in figures if f.data == "sst2" and f.contender in GRID}
    names = [name for name in GRID if any((name, epsilon) in found for epsilon in EPSILONS)]
    if not names:
        return []
    lines = [
        "## How AdaFEST's threshold was chosen",
        "",
        "On SST-2, one seed, in 300 steps as the other methods have. The threshold is in standard deviations of the",
        "noise of counts; the share divides noise between counts and gradients. The lower the threshold, the better,",
        "and the more rows are chosen by chance, which costs time. The default now allows 20 such rows per text of a",
        "batch, at most 31 % of all rows (threshold 0.5), and takes 75 steps on batches four times as large, in which",
        "counts stand out twice as much. What that did: compare the row 0.5, 0.5 with AdaFEST above.",
        "",
        "| threshold | share | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
        "|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        cells = [f"{found[name, e]:.4f}" if (name, e) in found else "" for e in EPSILONS]
        lines.append(f"| {GRID[name][0]:g} | {GRID[name][1]:g} | {' | '.join(cells)} |")
    return [*lines, ""]


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
    figures: list[Figure] = []
    if given.figures.exists():
        record = json.loads(given.figures.read_text())
        figures = [Figure(**f) for f in record["figures"]]
        write(given, Machine(**record["machine"]), figures)
    facts = machine(1)
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
            figures.append(measure(problems[pairs], contender, epsilon, seed, short(facts.commit)))
            print(figures[-1], flush=True)
            write(given, facts, figures)


def write(given: argparse.Namespace, facts: Machine, figures: list[Figure]) -> None:
    """The figures and the page, as far as they go."""
    content = {"machine": asdict(facts), "figures": [asdict(f) for f in figures]}
    write_atomically(given.figures, json.dumps(content, indent=1) + "\n")
    write_atomically(given.page, page(figures, origin(facts, figures)))


if __name__ == "__main__":
    main()
