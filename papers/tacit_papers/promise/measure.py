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
from tacit.jobs.resolving import with_defaults
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
    """AUC on the held-out rows by method and seed, and what the methods chose.

    A run that stays dense after its warm-up *is* the dense run of its seed, with the same batches, noise and rate in
    every step (a test of the trainer holds it to that, bit by bit), so that is not made twice.
    """
    started = time.monotonic()
    runs: dict[str, list[Outcome]] = {name: [] for name in METHODS}
    for seed in range(question.seeds):
        auto = _run(question, "auto", seed, problem)
        assert auto is not None
        dense = auto if auto.dense else _run(question, "dense", seed, problem)
        soft = _run(question, "soft", seed, problem, unless_dense=True)
        for name, outcome in (("dense", dense), ("auto", auto), ("soft", soft or dense)):
            assert outcome is not None
            runs[name].append(outcome)
    return {
        **question.record,
        "rows": problem.examples,
        "held_out": len(problem.held_out),  # type: ignore[arg-type]
        "coordinates": runs["dense"][0].coordinates,
        "methods": {
            name: {
                "auc": [run.auc for run in found],
                "active": [run.active for run in found],
                "reason": [run.reason for run in found],
            }
            for name, found in runs.items()
        },
        "seconds": round(time.monotonic() - started, 1),
    }


@dataclass(frozen=True)
class Outcome:
    """What came out of a run; ``dense`` if all coordinates were active with full weight to the end."""

    auc: float
    active: float
    coordinates: int
    dense: bool
    reason: str


def _run(
    question: Question, method: str, seed: int, problem: Problem, *, unless_dense: bool = False
) -> Outcome | None:
    """One run; nothing if it is to end where it turns out to stay dense."""
    experiment = with_defaults(
        Experiment(
            data=DataConfig(source=question.table.label),
            model=ModelConfig(name=question.model),
            method=METHODS[method],
            privacy=PrivacyConfig(epsilon=question.epsilon),
            training=TrainingConfig(seed=seed),
        ),
        problem,
    )
    plan = _plan(question, method, experiment, problem.examples)
    trainer = build_trainer(experiment, problem, plan)
    everything = Support.all(trainer.model)
    reason = ""
    for step in trainer.steps():
        if step.number == plan.phases[0].steps + 1:
            reason = step.selection.reason
            if unless_dense and trainer.support == everything:
                return None
    assert problem.held_out is not None
    x, y = problem.held_out.tensors  # type: ignore[attr-defined]
    outputs = torch.cat([trainer.predict(part) for part in torch.split(x, 4096)])
    support = trainer.support
    return Outcome(auc(outputs, y), support.ratio, support.dimension, support == everything, reason)


_PLANS: dict[tuple[Question, str], Plan] = {}


def _plan(question: Question, method: str, experiment: Experiment, examples: int) -> Plan:
    """The plan, which does not depend on the seed."""
    if (question, method) not in _PLANS:
        _PLANS[question, method] = plan_of(experiment, examples)
    return _PLANS[question, method]


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
