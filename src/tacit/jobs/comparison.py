"""Several methods, budgets and seeds on one task: every cell its own run, kept as soon as it is done.

Runs with the same seed share initial weights, batches and the stream of their noise, so methods are compared
pair by pair. Seeded runs are not for release, and a choice made by comparing runs on private data is not
covered by their ε.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tacit.errors import ArgumentError, FileError, check_count
from tacit.files import read_json, without_infinities, write_json
from tacit.jobs.budget import cost_of_plan, find_budget, reserve_for
from tacit.jobs.defaults import plan_of, with_active_ratio
from tacit.jobs.problem import IMAGE_SIZE, Problem
from tacit.jobs.resolving import load_data, rounds_of, settled, with_defaults
from tacit.jobs.run import Job, run_job
from tacit.jobs.settings import Experiment, MethodConfig, from_record, to_record
from tacit.models.config import ModelConfig
from tacit.option_fields import options_of
from tacit.plan import Plan, Schedule
from tacit.plan.budgets import Cost
from tacit.plan.methods import METHODS, method_of
from tacit.plan.plan import check_batch

NO_NOISE = "no-noise"
"""DP-SGD with its clipping but without noise: what the noise costs is the distance to it."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    method: str
    epsilon: float
    seed: int
    experiment: Experiment

    @property
    def file(self) -> str:
        """The name of the file that keeps its result."""
        label = re.sub(r"[^\w.-]", "-", f"{self.method}_{self.epsilon:g}_{self.seed}")
        return f"{label}.json"


@dataclass(frozen=True)
class CellResult:
    """What came out of one run: figures on held-out data and the size of the last support.

    ``seconds`` is by the clock, ``processor_seconds`` what the process itself computed.
    """

    method: str
    epsilon: float
    seed: int
    held_out: dict[str, float]
    active: int
    coordinates: int
    seconds: float
    processor_seconds: float = 0.0


def cells_of(
    base: Experiment,
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: Sequence[int],
    *,
    secure: bool = False,
) -> tuple[Cell, ...]:
    """All runs of a comparison. A method is a name, or a name and an active ratio as in tp-topk:0.4.

    An option of ``base`` that a method does not have is left out for it. With ``secure`` seeds only number the runs:
    their noise is cryptographic, as data with a budget needs it.
    """
    if len(set(methods)) != len(methods) or not methods:
        raise ArgumentError(
            f"Compare at least one method, and each once; got {', '.join(methods) or 'none'}."
        )
    cells = []
    for label in methods:
        method, noiseless = _method(base, label)
        for epsilon in (math.inf,) if noiseless else epsilons:
            for seed in seeds:
                check_count("seed", seed, least=0)
                experiment = replace(
                    base,
                    method=method,
                    privacy=replace(base.privacy, epsilon=epsilon),
                    training=replace(base.training, seed=None if secure else seed),
                )
                cells.append(Cell(label, epsilon, seed, experiment))
    return tuple(cells)


def _method(base: Experiment, label: str) -> tuple[MethodConfig, bool]:
    name, colon, ratio = label.partition(":")
    if name == NO_NOISE:
        return MethodConfig("dp-sgd"), True
    if name not in METHODS:
        raise ArgumentError(
            f"There is no method {name!r} to compare; there are {', '.join(METHODS)}, {NO_NOISE}."
        )
    taken = options_of(METHODS[name])
    options = {option: value for option, value in base.method.options.items() if option in taken}
    if colon:
        try:
            options["active_ratio"] = ratio if ratio in ("auto", "soft") else float(ratio)
        except ValueError:
            raise ArgumentError(f"{label!r} must be a method and a share, as in {name}:0.4.") from None
    return with_active_ratio(MethodConfig(name, **options)), False


def check_cells(cells: Sequence[Cell], problem: Problem) -> None:
    """Refuse, before anything is trained, a method without its options or a schedule without steps."""
    for cell in {cell.method: cell for cell in cells}.values():
        experiment = with_defaults(cell.experiment, problem)
        training = experiment.training
        assert training.batch_size is not None
        assert training.epochs is not None
        check_batch(training.batch_size, problem.examples)
        schedule = Schedule.of(problem.examples, training.batch_size, training.epochs)
        method_of(experiment.method.name, experiment.method.options).phases(schedule)


def run_cells(
    cells: Sequence[Cell], out: Path | None, *, workers: int = 1, done: Callable[[], None] = lambda: None
) -> list[CellResult]:
    """Run what is not yet in ``out``, over several processes, and return all results in their order."""
    check_count("workers", workers)
    found: dict[Cell, CellResult] = {}
    for cell in cells:
        kept = _kept(cell, out)
        if kept is not None:
            found[cell] = kept
            done()
    fresh = [cell for cell in cells if cell not in found]
    if fresh:
        # In one piece, before the first of them: no result decides on the next run.
        reserve_for(fresh[0].experiment, costs_of(fresh), "compare", "in memory" if out is None else str(out))
    for cell, result in _fresh(fresh, workers):
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / cell.file, {**_record(result), "experiment": to_record(cell.experiment)})
        found[cell] = result
        done()
    return [found[cell] for cell in cells]


def kept_cells(cells: Sequence[Cell], out: Path | None) -> list[Cell]:
    """The runs whose results are in ``out`` already: they cost nothing more."""
    return [cell for cell in cells if _kept(cell, out) is not None]


def costs_of(cells: Sequence[Cell]) -> list[Cost]:
    """What runs of a comparison would take from the budget of their data; nothing where it has none."""
    if not cells or find_budget(cells[0].experiment.data.source) is None:
        return []
    return [cost_of_plan(_job(cell).plan) for cell in cells]


def _job(cell: Cell) -> Job:
    problem = _problem(Experiment(data=cell.experiment.data, model=_frozen_prefix(cell.experiment.model)))
    experiment = with_defaults(cell.experiment, problem)
    problem = settled(experiment, problem)
    same = _with_seed(experiment, 0)
    return Job(
        experiment, problem, _plan(same, problem.examples, problem.units is not None, rounds_of(problem))
    )


def run_cell(cell: Cell) -> CellResult:
    """Train one run in memory and measure it; ``run_cells`` has reserved what it costs."""
    job = _job(cell)
    started = time.process_time()
    result = run_job(job, command="compare", in_memory=True, reserved=True, progress=False).result
    if not result.finished:
        raise KeyboardInterrupt
    return CellResult(
        cell.method,
        cell.epsilon,
        cell.seed,
        dict(result.measured),
        result.active,
        result.dimension,
        round(result.seconds, 2),
        round(time.process_time() - started, 2),
    )


def _with_seed(experiment: Experiment, seed: int) -> Experiment:
    """``experiment`` with another seed: a plan does not depend on it."""
    return replace(experiment, training=replace(experiment.training, seed=seed))


def _fresh(cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, CellResult]]:
    if workers == 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, run_cell(cell)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(cells)), context, initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        waiting: dict[Future[CellResult], Cell] = {pool.submit(run_cell, cell): cell for cell in cells}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _frozen_prefix(model: ModelConfig) -> ModelConfig:
    """The part of a model's description that its data depend on: a frozen prefix, computed once."""
    return replace(model, lora_rank=None, lora_layers=None) if model.frozen_blocks else ModelConfig()


@lru_cache(maxsize=1)
def _problem(experiment: Experiment) -> Problem:
    problem = load_data(experiment, leave_open=True)
    if problem.held_out is None:
        raise ArgumentError(f"{problem.name!r} has no held-out data to compare on; give a pair of datasets.")
    return problem


@lru_cache(maxsize=64)
def _plan(experiment: Experiment, examples: int, grouped: bool, rounds: int) -> Plan:
    return plan_of(experiment, examples, grouped=grouped, rounds=rounds)


def _kept(cell: Cell, out: Path | None) -> CellResult | None:
    path = None if out is None else out / cell.file
    if path is None or not path.exists():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or _stated(from_record(record.get("experiment"), path)) != _stated(
        cell.experiment
    ):
        raise FileError(
            f"{path} was made with other settings; choose another --out, or delete it to run it again."
        )
    held_out = {
        name: math.nan if value is None else float(value) for name, value in record["held_out"].items()
    }
    return CellResult(
        cell.method,
        cell.epsilon,
        cell.seed,
        held_out,
        record["active"],
        record["coordinates"],
        record["seconds"],
        record.get("processor_seconds", 0.0),
    )


def _stated(experiment: Experiment) -> Experiment:
    """``experiment`` with two defaults that earlier versions wrote down and this one leaves open."""
    data, training = experiment.data, experiment.training
    return replace(
        experiment,
        data=replace(data, image_size=data.image_size or IMAGE_SIZE),
        training=replace(training, clip_norm=1.0 if training.clip_norm is None else training.clip_norm),
    )


def _record(result: CellResult) -> dict[str, Any]:
    record: dict[str, Any] = without_infinities(dataclasses.asdict(result))
    return {**record, "epsilon": "inf" if math.isinf(result.epsilon) else result.epsilon}
