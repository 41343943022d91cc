"""Runs of the three methods at their defaults, seed by seed on the same rows, batches and noise."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tacit.files import read_json, write_json
from tacit.jobs.defaults import plan_of
from tacit.jobs.held_out import auc
from tacit.jobs.problem import Problem, load_problem
from tacit.jobs.run import with_defaults
from tacit.jobs.settings import (
    DataConfig,
    Experiment,
    MethodConfig,
    PrivacyConfig,
    TrainingConfig,
)
from tacit.jobs.setup import build_trainer
from tacit.models.config import ModelConfig
from tacit.plan import Plan
from tacit.support import Support
from tacit_papers.promise.tables import TARGET, TableSpec

METHODS: dict[str, MethodConfig] = {
    "dense": MethodConfig("dp-sgd"),
    "auto": MethodConfig("tp-topk", active_ratio="auto"),
    "soft": MethodConfig("tp-topk", active_ratio="soft"),
}


@dataclass(frozen=True)
class Question:
    """One comparison of the three methods: a table, a model by name with all its defaults, and ε."""

    table: TableSpec
    model: str
    epsilon: float
    seeds: int

    @property
    def record(self) -> dict[str, Any]:
        """Everything that decides the runs, as plain values."""
        return {
            "table": self.table.label,
            "part": self.table.part,
            "padding": self.table.padding,
            "model": self.model,
            "epsilon": self.epsilon,
            "seeds": self.seeds,
        }

    @property
    def file(self) -> str:
        """The name of the file that keeps the answer."""
        text = json.dumps(self.record, sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def answer(question: Question, problem: Problem) -> dict[str, Any]:
    """AUC on the held-out rows by method and seed, and what the methods chose."""
    started = time.monotonic()
    found: dict[str, Any] = {
        name: {"auc": [], "active": [], "reason": [], "coordinates": []} for name in METHODS
    }
    plans: dict[str, Plan] = {}
    for seed in range(question.seeds):
        for name, method in METHODS.items():
            experiment = with_defaults(
                Experiment(
                    data=DataConfig(source=question.table.label),
                    model=ModelConfig(name=question.model),
                    method=method,
                    privacy=PrivacyConfig(epsilon=question.epsilon),
                    training=TrainingConfig(seed=seed),
                ),
                problem,
            )
            if name not in plans:
                plans[name] = plan_of(experiment, problem.examples)
            one = _run(experiment, problem, plans[name], found["dense"]["auc"][seed : seed + 1])
            for key, value in one.items():
                found[name][key].append(value)
    return {
        **question.record,
        "rows": problem.examples,
        "held_out": len(problem.held_out),  # type: ignore[arg-type]
        "coordinates": found["dense"]["coordinates"][0],
        "methods": {
            name: {key: values for key, values in one.items() if key != "coordinates"}
            for name, one in found.items()
        },
        "seconds": round(time.monotonic() - started, 1),
    }


def _run(experiment: Experiment, problem: Problem, plan: Plan, dense: Sequence[float]) -> dict[str, Any]:
    """One run. One that stays dense after its warm-up *is* the dense run of its seed, so that is not made again.

    Both have the same seed, noise and rate in every step; a test of the trainer holds them to it bit by bit.
    """
    trainer = build_trainer(experiment, problem, plan)
    everything = Support.all(trainer.model)
    warm = plan.phases[0].steps if len(plan.phases) > 1 else None
    reason = "DP-SGD."
    for step in trainer.steps():
        if warm is not None and step.number == warm + 1:
            reason = step.selection.reason
            if trainer.support == everything and dense:
                return {"auc": dense[0], "active": 1.0, "reason": reason, "coordinates": everything.dimension}
    assert problem.held_out is not None
    x, y = problem.held_out.tensors  # type: ignore[attr-defined]
    outputs = torch.cat([trainer.predict(part) for part in torch.split(x, 4096)])
    return {
        "auc": auc(outputs, y),
        "active": trainer.support.ratio,
        "reason": reason,
        "coordinates": everything.dimension,
    }


@cache
def problem_of(table: TableSpec, data_dir: str | None) -> Problem:
    """The table as ``tacit train`` reads it: types, ranges and cuts from the rows, a fifth of them held out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.frame(data_dir).to_csv(path, index=False)
        problem = load_problem(DataConfig(source=str(path), target=TARGET))
    return replace(problem, name=table.label)


def measure(
    questions: Sequence[Question], folder: Path, data_dir: str | None, done: Callable[[], None]
) -> dict[str, Any]:
    """The answers to all questions; those that ``folder`` holds are not asked again."""
    answers = []
    for place, question in enumerate(questions):
        path = folder / question.file
        if not path.exists():
            write_json(path, answer(question, problem_of(question.table, data_dir)))
            if [q.table for q in questions[place + 1 : place + 2]] != [question.table]:
                problem_of.cache_clear()
        answers.append(read_json(path))
        done()
    return {"answers": answers}
