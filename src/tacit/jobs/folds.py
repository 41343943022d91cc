"""Cross-validation: every part of the data held out once, each time in a run of its own, with what all of them cost.

The folder holds a run directory per part and what they promise together (``tacit.runs.folds``). The same command again
continues: finished runs are kept, a stopped one is resumed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError, FileError
from tacit.files import read_json, write_json
from tacit.jobs.budget import (
    Reservation,
    cost_of_plan,
    find_budget,
    give_back,
    reserve_for,
)
from tacit.jobs.run import Job, Outcome, free_directory, resolve, run_job, with_start
from tacit.jobs.settings import Experiment, from_record
from tacit.runs.folds import FORMAT, Promise, planned_promise, write_promise
from tacit.runs.layout import EXPERIMENT_FILE, FOLDS_FILE, FOLDS_PAGE, RESULT_FILE

MOST = 50
COMMAND = "train --folds"


@dataclass(frozen=True)
class Folds:
    """The jobs of a cross-validation, and what they will cost together."""

    jobs: tuple[Job, ...]
    promise: Promise

    @property
    def sentence(self) -> str:
        """What it costs, to be read before anything is spent."""
        one = self.jobs[0].plan
        return (
            f"{len(self.jobs)} runs of ε = {one.epsilon:g}; every {'unit' if one.grouped else 'example'} is trained on "
            f"in {self.promise.touched} of them. Together they cost at most ε = {self.promise.epsilon:.4g}, "
            f"δ = {self.promise.delta:g}. A model trained on everything costs its own ε besides."
        )


def resolve_folds(
    experiment: Experiment, count: int, *, finetune: bool = False, only_plan: bool = False
) -> Folds:
    """The runs of a cross-validation in ``count`` parts; nothing is spent or written.

    With ``only_plan`` features of images are not computed.
    """
    if not 2 <= count <= MOST:
        raise ArgumentError(f"--folds must be from 2 to {MOST}, got {count}.")
    if experiment.data.fold is not None:
        raise ArgumentError("--folds holds out every part in turn; leave out --fold.")
    if experiment.data.test is not None:
        raise ArgumentError("--folds measures on parts of the data itself; leave out --test.")
    why = ""
    if finetune and experiment.data.public is not None:
        experiment, why = with_start(experiment)  # once, and the same for all
    jobs = tuple(
        resolve(
            replace(experiment, data=replace(experiment.data, fold=f"{part}/{count}")),
            finetune=finetune,
            only_plan=only_plan,
        )
        for part in range(1, count + 1)
    )
    jobs = (replace(jobs[0], why=why), *jobs[1:])
    return Folds(jobs, planned_promise([job.plan for job in jobs]))


def run_folds(
    folds: Folds, out: Path | None, *, progress: bool = True, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run what is not finished yet, one after the other, and sum up; the record of the folder.

    What all runs may cost is reserved before the first, where the data has a budget.
    """
    folder = (out or free_directory(f"{Path(folds.jobs[0].problem.name).stem}-folds")).absolute()
    names = [f"fold-{place}" for place in range(1, len(folds.jobs) + 1)]
    reserved = _begin(folder, folds, names)
    outcomes: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    for name, job in zip(names, folds.jobs, strict=True):
        run_dir = folder / name
        if not (run_dir / RESULT_FILE).is_file():
            say(f"{name} of {len(names)}")
            found = _run(job, run_dir, reserved.get(name), progress)
            if not found.result.finished:
                return {"run": str(folder), "finished": False, "done": list(outcomes)}
        outcomes[name] = read_json(run_dir / RESULT_FILE)
        warnings += [f"{name}: {warning}" for warning in outcomes[name].get("warnings", ())]
    figures = {
        "data": folds.jobs[0].problem.name,
        "folds": {name: record["held_out"] for name, record in outcomes.items()},
        "mean": _summary(list(outcomes.values()), statistics.mean),
        "deviation": _summary(list(outcomes.values()), statistics.stdev),
        "warnings": warnings,
    }
    write_promise(folder, names, figures)
    record: dict[str, Any] = read_json(folder / FOLDS_FILE)
    return {**record, "run": str(folder), "finished": True, "certificate": str(folder / FOLDS_PAGE)}


def _summary(
    records: Sequence[dict[str, Any]], of: Callable[[list[float]], float]
) -> dict[str, float | None]:
    """A figure over the parts, for each measure that every part has."""
    columns = {name: [record["held_out"].get(name) for record in records] for name in records[0]["held_out"]}
    return {
        name: of([float(value) for value in values]) if all(value is not None for value in values) else None
        for name, values in columns.items()
    }


def _run(job: Job, run_dir: Path, reservation: Reservation | None, progress: bool) -> Outcome:
    if (run_dir / EXPERIMENT_FILE).is_file():
        return run_job(run_dir, command=COMMAND, progress=progress)
    return run_job(job, run_dir, command=COMMAND, progress=progress, reservation=reservation)


def _begin(folder: Path, folds: Folds, names: Sequence[str]) -> dict[str, Reservation]:
    """Make the folder, or see that it is this cross-validation's; reserve what is not reserved yet."""
    path = folder / FOLDS_FILE
    noted: dict[str, Any] = {}
    if path.is_file():
        record = read_json(path)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise FileError(f"{path} is no cross-validation of this version of Tacit.")
        noted = record.get("budget") or {}
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} already exists, and is no cross-validation; choose another --out.")
    for name, job in zip(names, folds.jobs, strict=True):
        _check_same(folder / name, job.experiment)
    if (folder / f"fold-{len(names) + 1}").exists():
        raise FileError(f"{folder} holds a cross-validation in more parts; choose another --out.")
    reserved = {name: Reservation(Path(one["file"]), one["number"]) for name, one in noted.items()}
    if not path.is_file():
        reserved = _reserve(folder, folds, names)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(
            path, {"format": FORMAT, "budget": {name: one.record for name, one in reserved.items()}}, new=True
        )
    return reserved


def _reserve(folder: Path, folds: Folds, names: Sequence[str]) -> dict[str, Reservation]:
    """Reserve every run, all or none."""
    found: dict[str, Reservation] = {}
    if find_budget(folds.jobs[0].experiment.data.source) is None:
        return found
    try:
        for name, job in zip(names, folds.jobs, strict=True):
            one = reserve_for(
                job.experiment, [cost_of_plan(job.plan)], "cross-validation", str(folder / name)
            )
            assert one is not None
            found[name] = one
    except BaseException:
        for one in found.values():
            give_back(one)
        raise
    return found


def _check_same(run_dir: Path, experiment: Experiment) -> None:
    path = run_dir / EXPERIMENT_FILE
    if not path.is_file():
        return
    if from_record(read_json(path).get("experiment"), path) != experiment:
        raise FileError(f"{run_dir} was made with other settings; choose another --out.")
