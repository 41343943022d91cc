"""Runs on disk: started from a description, resumed from the run directory alone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.data import LOADERS, Schema, read_schema, write_schema
from tacit.data.sources import DATA_DIR_VARIABLE
from tacit.distributed.joining import checked
from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError, FileError, TacitError
from tacit.files import read_json, write_json
from tacit.jobs.description import Experiment, from_record, to_record
from tacit.jobs.held_out import record_held_out
from tacit.jobs.problem import Problem, load_problem
from tacit.jobs.setup import build_trainer, complete, plan_of
from tacit.plan import Plan, load_plan
from tacit.release.ledger_file import read_ledger
from tacit.runs import load_certificate
from tacit.runs.layout import (
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    EXPERIMENT_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    RESULT_FILE,
    SCHEMA_FILE,
)
from tacit.runs.run import holds_charges
from tacit.training.fitting import Result
from tacit.training.trainer import Trainer

_FORMAT = "tacit-experiment-1"


@dataclass(frozen=True)
class Prepared:
    """A complete experiment with its data and its plan; nothing has been spent or written yet."""

    experiment: Experiment
    problem: Problem
    plan: Plan


def prepare(experiment: Experiment) -> Prepared:
    """Load the data, decide what the description leaves open, and plan."""
    experiment = anchored(experiment)
    problem = problem_of(experiment)
    experiment = complete(experiment, problem)
    return Prepared(experiment, problem, plan_of(experiment, problem.examples))


def prepare_finetuning(experiment: Experiment) -> Prepared:
    """The same for a pretrained network: its method is a way to fine-tune."""
    from tacit.jobs.finetuning import begun, check_answers, check_reads, completed, resolved

    experiment = anchored(completed(experiment))
    problem = load_problem(experiment.data)
    if problem.task is None:
        raise ArgumentError(
            f"Fine-tuning needs a task that states its classes; {problem.name!r} is a bare dataset."
        )
    check_reads(experiment.model, problem.task)
    experiment = resolved(experiment, problem.task.outputs)
    check_answers(experiment.model, problem.task, experiment.data.data_dir)
    experiment = complete(experiment, problem)
    plan = plan_of(experiment, problem.examples)
    return Prepared(experiment, begun(experiment, problem), plan)


def problem_of(experiment: Experiment, schema: Schema | None = None) -> Problem:
    """The data of an experiment; with a frozen beginning, what its blocks make of them."""
    problem = load_problem(experiment.data, schema)
    if not experiment.model.frozen_blocks:
        return problem
    from tacit.jobs.finetuning import begun

    return begun(experiment, problem)


def start(
    prepared: Prepared,
    run_dir: Path,
    *,
    progress: bool = True,
    ranks: Ranks | None = None,
    witness: Path | None = None,
) -> Result:
    """Train in a directory that does not exist yet, or is empty.

    If training cannot begin, nothing is left behind; once a release has been charged, the directory stays
    and can be resumed.
    """
    run_dir, ranks = run_dir.absolute(), checked(ranks)
    ranks.lead(lambda: _check_free(run_dir))
    trainer = build_trainer(prepared.experiment, prepared.problem, prepared.plan, run_dir, ranks, witness)
    new = ranks.lead(lambda: _claim(run_dir, prepared))
    try:
        if prepared.problem.schema is not None and ranks.rank == 0:
            write_schema(prepared.problem.schema, run_dir / SCHEMA_FILE)
        result = trainer.fit(progress=progress)
    except BaseException:
        if ranks.rank == 0 and not _has_paid(run_dir):
            _clear(run_dir, whole=new)
        raise
    ranks.lead(lambda: _write_result(run_dir, result, trainer, prepared.experiment, prepared.problem))
    return result


def resume(run_dir: Path, *, progress: bool = True, ranks: Ranks | None = None) -> Result:
    """Go on with a run, from its directory alone, on whatever stopped it; every rank must see the directory."""
    run_dir, ranks = run_dir.absolute(), checked(ranks)
    experiment, problem = reload(run_dir)
    plan_file = run_dir / PLAN_FILE
    plan = load_plan(plan_file) if plan_file.exists() else plan_of(experiment, problem.examples)
    trainer = build_trainer(experiment, problem, plan, run_dir, ranks)
    begun = ranks.lead(lambda: holds_charges(run_dir))
    result = trainer.resume(progress=progress) if begun else trainer.fit(progress=progress)
    ranks.lead(lambda: _write_result(run_dir, result, trainer, experiment, problem))
    return result


def reload(run_dir: Path) -> tuple[Experiment, Problem]:
    """The experiment that a run directory holds, and its data, loaded again."""
    path = run_dir / EXPERIMENT_FILE
    if not run_dir.is_dir():
        raise FileError(f"There is no run directory {run_dir}.")
    if not path.is_file():
        raise FileError(
            f"{run_dir} holds no {EXPERIMENT_FILE}: it was not started by tacit train; resume it from Python."
        )
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise FileError(f"{path} is not from this version of Tacit, or was edited.")
    experiment = from_record(record.get("experiment"), path)
    if not _same_source(record.get("source"), experiment):
        raise FileError(
            f"{experiment.data.source} is gone or has changed since {run_dir} was started; the promise is "
            "about the data it began with."
        )
    schema_file = run_dir / SCHEMA_FILE
    schema = read_schema(schema_file) if schema_file.exists() else None
    with contextlib.chdir(_directory(record, path)):
        return experiment, problem_of(experiment, schema)


def outcome_record(run_dir: Path, result: Result) -> dict[str, Any]:
    """What came out of a run, in plain values: figures, files and the certificate's words."""
    record: dict[str, Any] = {
        "run": str(run_dir),
        "finished": result.finished,
        "steps": result.steps,
        "epsilon": result.epsilon,
        "delta": result.delta,
        "held_out": dict(result.measured),
        "active": result.active,
        "coordinates": result.dimension,
        "selections": dict(result.selections),
        "seconds": round(result.seconds, 2),
    }
    if result.finished:
        certificate = load_certificate(run_dir / CERTIFICATE_FILE)
        record |= {
            "model": str(run_dir / MODEL_FILE),
            "certificate": str(run_dir / PAGE_FILE),
            "for_release": certificate.for_release,
            "reasons_against_release": list(certificate.reasons_against_release),
            "statement": certificate.statement,
            "not_covered": list(certificate.not_covered),
        }
    return record


def anchored(experiment: Experiment) -> Experiment:
    """``experiment`` with absolute paths, so that a run can be resumed from any directory."""
    data, model = experiment.data, experiment.model
    if data.source in LOADERS:
        named = data.data_dir or os.environ.get(DATA_DIR_VARIABLE)
        data = replace(data, data_dir=str(Path(named).absolute()) if named else None)
    else:
        data = replace(data, source=_absolute(data.source) or "")
    data = replace(data, tokenizer=_absolute(data.tokenizer, holding="config.json"))
    name = _absolute(model.name, holding="config.json")
    return replace(experiment, data=data, model=replace(model, name=name, weights=_absolute(model.weights)))


def _absolute(name: str | None, holding: str = "") -> str | None:
    return str(Path(name).absolute()) if name and (Path(name) / holding).exists() else name


def _check_free(run_dir: Path) -> None:
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise FileError(f"{run_dir} already exists; resume the run in it, or choose another --out.")


def _claim(run_dir: Path, prepared: Prepared) -> bool:
    """Make the directory ours by a file that only one process can create; whether the directory is new."""
    new = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / EXPERIMENT_FILE, _record(prepared), new=True)
    except OSError as error:
        raise FileError(f"The run directory {run_dir} cannot be made: {error.strerror}.") from error
    except BaseException:
        with contextlib.suppress(OSError):
            if new:
                run_dir.rmdir()  # fails, as it should, if another process has begun in it
        raise
    return new


def _record(prepared: Prepared) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "experiment": to_record(prepared.experiment),
        "source": _trace(prepared.experiment),
        "directory": str(Path.cwd()),
    }


def _trace(experiment: Experiment) -> dict[str, int] | None:
    """When a user's file was last written: enough to notice a change. Its size would tell the length of a row."""
    path = Path(experiment.data.source)
    if experiment.data.source in LOADERS or not path.is_file():
        return None
    return {"modified_ns": path.stat().st_mtime_ns}


def _same_source(noted: Any, experiment: Experiment) -> bool:
    """Whether the data is still what was noted; version 0.1 noted the size as well."""
    if isinstance(noted, dict) and isinstance(size := noted.get("bytes"), int):
        path = Path(experiment.data.source)
        if not path.is_file() or path.stat().st_size != size:
            return False
        noted = {key: value for key, value in noted.items() if key != "bytes"}
    return bool(noted == _trace(experiment))


def _directory(record: dict[str, Any], path: Path) -> Path:
    directory = Path(str(record.get("directory", "")))
    if not directory.is_dir():
        raise FileError(f"The directory {directory}, in which {path.parent} was started, is gone.")
    return directory


def _has_paid(run_dir: Path) -> bool:
    """Whether a release may have been charged: the first checkpoint is written before the first charge."""
    if not (run_dir / CHECKPOINT_FILE).exists():
        return False
    try:
        return bool(read_ledger(run_dir / LEDGER_FILE).charges)
    except TacitError:
        return True


def _clear(run_dir: Path, *, whole: bool) -> None:
    """Remove what an attempt that never began has written."""
    if whole:
        shutil.rmtree(run_dir, ignore_errors=True)
        return
    for entry in run_dir.iterdir() if run_dir.is_dir() else ():
        if entry.is_file():
            entry.unlink(missing_ok=True)


def _write_result(
    run_dir: Path, result: Result, trainer: Trainer, experiment: Experiment, problem: Problem
) -> None:
    if result.finished:
        record_held_out(run_dir, trainer, problem, experiment.data.prevalence)
        record = dataclasses.asdict(result)
        record["run_dir"] = str(run_dir)
        write_json(run_dir / RESULT_FILE, _finite(record))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
