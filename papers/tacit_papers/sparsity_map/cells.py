"""Single runs of the map: each kept in a file as soon as it is done, so that an interrupted map goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from tacit.files import read_json, write_json
from tacit.jobs.held_out import measures
from tacit.jobs.setup import LOSSES
from tacit.plan import Plan, make_plan
from tacit.training.evaluation import Metric
from tacit.training.trainer import Trainer
from tacit_papers.sparsity_map.grid import Arm, Setting
from tacit_papers.sparsity_map.problems import problem_of

CLIP = 0.1
"""So small that almost every gradient is clipped: the learning rate alone sets the length of a step."""
DELTA = 1e-5


@dataclass(frozen=True)
class Cell:
    """One run."""

    setting: Setting
    arm: Arm
    rate: float
    seed: int

    @property
    def record(self) -> dict[str, Any]:
        """Everything that decides the run, as plain values."""
        setting = dataclasses.asdict(self.setting)
        for name in ("part", "rates", "seeds"):  # which table it stands in, and beside what, changes nothing
            del setting[name]
        return {
            **setting,
            "method": self.arm.method,
            "options": dict(self.arm.options),
            "rate": self.rate,
            "seed": self.seed,
        }

    @property
    def file(self) -> str:
        """The name of the file that keeps its result."""
        text = json.dumps(self.record, sort_keys=True)
        return f"{self.setting.data}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@dataclass(frozen=True)
class Outcome:
    """What came out of a run: AUC (two classes) or accuracy on the tuning and the test part, and the support."""

    tuning: float
    test: float
    active: int
    coordinates: int
    reason: str
    seconds: float


def run_cell(cell: Cell, data_dir: str | None) -> Outcome:
    """Train one run in memory and measure it."""
    setting = cell.setting
    started = time.monotonic()
    problem = problem_of(setting.data, setting.pad, setting.examples, data_dir)
    torch.manual_seed(cell.seed)
    model = problem.model(setting)
    trainer = Trainer(
        model,
        problem.train,
        LOSSES[problem.task.kind],
        _plan(cell.arm, setting, len(problem.train)),
        optimizer=lambda named: torch.optim.SGD(named, lr=cell.rate / CLIP),
        seed=cell.seed,
    )
    for _ in trainer.steps():
        pass
    metric = next(iter(measures(problem.task.kind).values()))
    return Outcome(
        tuning=_measured(trainer, metric, problem.tuning),
        test=_measured(trainer, metric, problem.test),
        active=trainer.support.size,
        coordinates=trainer.support.dimension,
        reason=list(trainer.selections.values())[-1],
        seconds=round(time.monotonic() - started, 2),
    )


def _measured(trainer: Trainer, metric: Metric, dataset: TensorDataset) -> float:
    """The measure of a model; chance where its outputs are no numbers."""
    x, y = dataset.tensors
    outputs = torch.cat([trainer.predict(part) for part in torch.split(x, 2048)])
    value = metric(outputs, y)
    return value if math.isfinite(value) else 0.5


@lru_cache(maxsize=64)
def _plan(arm: Arm, setting: Setting, examples: int) -> Plan:
    return make_plan(
        arm.method,
        epsilon=setting.epsilon,
        delta=DELTA,
        examples=examples,
        batch_size=setting.batch,
        epochs=setting.steps * setting.batch / examples,
        clip_norm=CLIP,
        **dict(arm.options),
    )


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    workers: int,
    data_dir: str | None,
    done: Callable[[], None] = lambda: None,
) -> dict[Cell, Outcome]:
    """Run what ``folder`` does not hold yet, over several processes."""
    found: dict[Cell, Outcome] = {}
    missing = []
    for cell in cells:
        path = folder / cell.file
        if path.exists():
            found[cell] = Outcome(**read_json(path)["outcome"])
            done()
        else:
            missing.append(cell)
    for cell, outcome in _fresh(missing, workers, data_dir):
        write_json(folder / cell.file, {"cell": cell.record, "outcome": dataclasses.asdict(outcome)})
        found[cell] = outcome
        done()
    return found


def _fresh(cells: Sequence[Cell], workers: int, data_dir: str | None) -> Iterator[tuple[Cell, Outcome]]:
    if workers == 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, run_cell(cell, data_dir)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(cells)), context, initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        waiting = {pool.submit(run_cell, cell, data_dir): cell for cell in cells}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
