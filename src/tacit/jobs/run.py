"""Jobs: resolved from a description, run on disk or in memory, resumed from the run directory alone."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.data import LOADERS, Schema, read_schema, write_schema
from tacit.data.table_file import Table
from tacit.data.task import Task, without_rows
from tacit.distributed.group import join, processes
from tacit.distributed.ranks import ALONE, Ranks
from tacit.errors import ArgumentError, FileError, TacitError
from tacit.files import read_json, without_infinities, write_json
from tacit.jobs import starts
from tacit.jobs.budget import (
    Reservation,
    cost_of_plan,
    give_back,
    noted_reservation,
    renewed,
    reserve_for,
    resume_reservation,
    settle_run,
)
from tacit.jobs.columns import measure_columns
from tacit.jobs.defaults import plan_of
from tacit.jobs.fingerprint import fingerprint
from tacit.jobs.held_out import record_held_out, warnings_of
from tacit.jobs.inputs import inputs_of, read_inputs, write_inputs
from tacit.jobs.problem import Problem, load_problem
from tacit.jobs.quality import quality_of
from tacit.jobs.resolving import (
    check_model,
    load_data,
    rounds_of,
    settled,
    with_absolute_paths,
    with_defaults,
)
from tacit.jobs.settings import Experiment, from_record, to_record
from tacit.jobs.setup import build_model, build_trainer, optimizer_of, prevalence_of
from tacit.plan import Plan, load_plan
from tacit.release.budget import read_budget
from tacit.release.ledger_file import read_ledger
from tacit.runs import DEFAULT_UNIT, load_certificate
from tacit.runs.certificate_file import DESCRIBING_FILES, check_certified
from tacit.runs.layout import (
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    EXPERIMENT_FILE,
    FOLDS_FILE,
    INPUTS_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    RESULT_FILE,
    SCHEMA_FILE,
)
from tacit.runs.run_directory import holds_charges
from tacit.training.fitting import Result
from tacit.training.open_run import open_run, start_of, start_run
from tacit.training.trainer import Trainer

_FORMAT = "tacit-experiment-1"


TOGETHER = ("train", "resume")
"""Commands under which the processes that torchrun has started train one model together."""


@dataclass(frozen=True)
class Job:
    """A complete experiment with its data and its plan; nothing has been spent or written yet.

    ``why`` says what was chosen for the user, by a rule or on public data. ``seconds`` is how long it took to read the
    data, compute its features and plan.
    """

    experiment: Experiment
    problem: Problem
    plan: Plan
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came out of a job. ``leads`` is false for all but one of several processes, which has the say.

    ``trainer`` is closed and holds the model, ``problem`` the data as they were read. ``warnings`` are sentences on
    what looks wrong with the data or the model.
    """

    run_dir: Path | None
    result: Result
    trainer: Trainer
    problem: Problem
    leads: bool = True
    warnings: tuple[str, ...] = ()


def run_job(
    job: Experiment | Job | Path,
    out: Path | None = None,
    *,
    command: str | None = None,
    finetune: bool = False,
    in_memory: bool = False,
    reserved: bool = False,
    reservation: Reservation | None = None,
    progress: bool = True,
    witness: Path | None = None,
) -> Outcome:
    """Run a job: resolve it, join the other processes or refuse to be one of several, train, write the results.

    Args:
        job: A description, a resolved job, or the directory of a run to continue.
        out: The run directory, which must not exist yet or be empty. By default the first free runs/NAME-N.
        command: The command that asks; it decides whether several processes train together.
        finetune: Whether the method of the description is a way to fine-tune a pretrained network.
        in_memory: Train without a run directory.
        reserved: Whether somebody has reserved, from the budget of the data, what a job in memory may cost.
        reservation: What somebody has reserved from the budget of the data for this run on disk.
        progress: Show a progress bar.
        witness: A file outside the run directory that also notes every release.

    Returns:
        The run directory and the result. If training cannot begin, nothing is left behind; once a release has been
        charged, the directory stays and can be resumed.

    Raises:
        TacitError: If the description, its data or the directory cannot be used, or if this is one of several
            processes and ``command`` trains in one.
    """
    ranks = join_processes(command)
    if isinstance(job, Path):
        trainer, result, problem = _resume(job.absolute(), progress, ranks)
        return _outcome(job.absolute(), result, trainer, problem, ranks)
    if isinstance(job, Experiment):
        if out is not None and not in_memory:
            ranks.lead(lambda: _check_free(out.absolute()))  # said before minutes of reading and of features
        job = resolve(job, finetune=finetune)
    if job.why and progress and ranks.rank == 0:
        print(job.why, file=sys.stderr)
    if in_memory:
        if not reserved:
            ranks.lead(lambda: reserve_in_memory(job, command))
        trainer, problem = _begin(job, None, ranks, None)
        result = _measured(trainer.fit(progress=progress), trainer, problem)
        return _outcome(None, result, trainer, problem, ranks)
    name = job.problem.name
    run_dir = Path(ranks.lead(lambda: str((out or free_directory(name)).absolute())))
    trainer, result, problem = _start(job, run_dir, progress, ranks, witness, reservation)
    return _outcome(run_dir, result, trainer, problem, ranks)


def _outcome(
    run_dir: Path | None, result: Result, trainer: Trainer, problem: Problem, ranks: Ranks
) -> Outcome:
    warnings = _warnings(problem, result, trainer)
    return Outcome(run_dir, result, trainer, problem, ranks.rank == 0, warnings)


def _warnings(problem: Problem, result: Result, trainer: Trainer) -> tuple[str, ...]:
    return warnings_of(problem, result.measured if result.finished else {}, trainer.plan.epsilon)


def reserve_in_memory(job: Job, command: str | None) -> None:
    """Reserve what a ``job`` without a directory may cost; it stays reserved, because no ledger tells what it did."""
    reserve_for(job.experiment, [cost_of_plan(job.plan)], command or "train", "in memory")


def join_processes(command: str | None) -> Ranks:
    """The processes that train together; a command that trains in one process is refused where there are several."""
    if command in TOGETHER:
        return join()
    if processes() > 1:
        raise ArgumentError(
            f"{f'tacit {command}' if command else 'This job'} trains in one process, and this is one of {processes()} "
            "that were started together; start it without torchrun, or use tacit train."
        )
    return ALONE


def resolve(
    experiment: Experiment,
    *,
    finetune: bool = False,
    table: Table | Task | None = None,
    schema: Schema | None = None,
    only_plan: bool = False,
) -> Job:
    """Load the data, decide what the description leaves open, and plan. Each pass fills in what it is named after.

    ``table`` holds the rows where they come from memory, or is a whole task; ``schema`` is what is declared about rows.
    With ``only_plan`` the features of images, which take minutes, are not computed.
    """
    began = time.monotonic()
    job = _resolve_finetuning(experiment) if finetune else _resolve(experiment, table, schema)
    if not only_plan:
        job = _with_features(job)
    return replace(job, seconds=time.monotonic() - began)


def _resolve(experiment: Experiment, table: Table | Task | None = None, schema: Schema | None = None) -> Job:
    experiment, why = with_absolute_paths(experiment), ""
    if table is None:
        experiment, why = starts.for_folder(experiment)
    check_model(experiment)
    problem = load_data(experiment, schema, table, leave_open=True, features_later=True)
    experiment = with_defaults(experiment, problem)
    problem = settled(experiment, problem)
    return Job(experiment, problem, _plan(experiment, problem), why)


def _with_features(job: Job) -> Job:
    """``job`` with its features computed. What can be refused without them is refused first: they take minutes."""
    experiment, problem = job.experiment, job.problem
    if problem.images is None:
        return job
    build_model(experiment, problem)
    optimizer_of(experiment.training, job.plan)
    return replace(job, problem=problem.on_features(experiment.data))


def _plan(experiment: Experiment, problem: Problem) -> Plan:
    return plan_of(experiment, problem.examples, grouped=problem.units is not None, rounds=rounds_of(problem))


def _resolve_finetuning(experiment: Experiment) -> Job:
    if experiment.data.task == "generate":
        from tacit.jobs.language import with_language_model

        return _resolve(with_language_model(experiment))
    from tacit.jobs import finetuning  # transformers takes seconds to load

    experiment, why = (
        with_start(experiment) if experiment.data.public is not None else starts.by_rule(experiment)
    )
    if experiment.data.features is not None:
        job = _resolve_on_features(finetuning.on_features(with_absolute_paths(experiment)))
        return replace(job, why=why)
    experiment = with_absolute_paths(finetuning.with_network(experiment))
    problem = load_problem(experiment.data)
    if problem.task is None:
        raise ArgumentError(
            f"Fine-tuning needs a task that states its classes; {problem.name!r} is a bare dataset."
        )
    finetuning.check_compatible_data(experiment.model, problem.task)
    experiment = finetuning.with_trained_part(experiment, problem.task.outputs, problem.examples)
    finetuning.check_compatible_outputs(experiment.model, problem.task, experiment.data.data_dir)
    experiment = with_defaults(experiment, problem)
    plan = plan_of(experiment, problem.examples, grouped=problem.units is not None)
    return Job(experiment, finetuning.with_frozen_prefix(experiment, problem), plan, why)


def _resolve_on_features(experiment: Experiment) -> Job:
    """A linear layer on features that no data set went into: what a last layer is to a network."""
    problem = load_problem(experiment.data, features_later=True)
    assert problem.task is not None
    experiment = with_defaults(experiment, problem)
    return Job(experiment, problem, _plan(experiment, problem))


def with_start(experiment: Experiment) -> tuple[Experiment, str]:
    """What to start from, chosen by training on public images; of the private ones only their number counts."""

    data = experiment.data
    if experiment.model.name is not None or data.features is not None:
        raise ArgumentError(
            "public is for choosing what to start from; leave out --public, --model or --features."
        )
    if experiment.method.name != "last-layer":
        raise ArgumentError(
            f"public compares last layers; {experiment.method.name} is for a network you name."
        )
    starts.check_public(data)
    public = starts.on_public(experiment)
    private, others = (load_problem(one.data).examples for one in (experiment, public))
    epsilon = starts.epsilon_on_public(experiment.privacy.epsilon, private, others)
    public = replace(public, privacy=replace(public.privacy, epsilon=epsilon))
    scores = {}
    for start in starts.STARTS:
        job = _with_features(_resolve_finetuning(start.of(public)))
        found = []
        for seed in starts.SEEDS:
            seeded = replace(job.experiment, training=replace(job.experiment.training, seed=seed))
            trainer, _ = _begin(replace(job, experiment=seeded), None, ALONE, None)
            measured = trainer.fit(progress=False).measured
            found.append(measured[next(name for name in measured if name != "loss")])
        scores[start] = sum(found) / len(found)
    assert data.public is not None
    best, why = starts.best_start(scores, data.public)
    return best.of(experiment), why


def free_directory(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist."""
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(name).stem) or "run"
    for number in range(1, 10_000):
        path = Path("runs") / f"{stem}-{number}"
        if not path.exists():
            return path
    raise ArgumentError(f"runs/ is full of runs of {stem}; choose a directory with --out.")


def _start(
    job: Job,
    run_dir: Path,
    progress: bool,
    ranks: Ranks,
    witness: Path | None,
    reservation: Reservation | None = None,
) -> tuple[Trainer, Result, Problem]:
    ranks.lead(lambda: _check_free(run_dir))
    trainer, problem = None, job.problem
    if problem.table is None:
        trainer, problem = _begin(
            job, run_dir, ranks, witness
        )  # refuses what it can before anything is written
    new = ranks.lead(lambda: _claim(run_dir, job, reservation))
    try:
        if trainer is None:
            trainer, problem = _begin(job, run_dir, ranks, witness)
        if ranks.rank == 0:
            _write_reading(run_dir, job.experiment, problem)
        result = _measured(trainer.fit(progress=progress), trainer, problem)
        result = replace(result, seconds=result.seconds + job.seconds)
    except BaseException:
        if ranks.rank == 0 and not _has_paid(run_dir):
            _clear(run_dir, whole=new)
        raise
    ranks.lead(lambda: _write_result(run_dir, result, trainer, job.experiment, problem))
    return trainer, result, problem


def _begin(
    job: Job, run_dir: Path | None, ranks: Ranks, witness: Path | None, *, resumed: bool = False
) -> tuple[Trainer, Problem]:
    """The trainer of a job and its data, encoded. Columns that the plan measures are measured first, and paid for."""
    experiment, problem, plan = job.experiment, job.problem, job.plan
    table = problem.table
    if table is None:
        return build_trainer(experiment, problem, plan, run_dir, ranks, witness), problem
    # Settings that do not go together are refused before anything is paid.
    optimizer_of(experiment.training, plan)
    training = experiment.training
    unmeasured = table.measured_not_covered()
    start = start_of(training.seed, DEFAULT_UNIT, unmeasured, training.isolation, witness)
    begun = (
        open_run(ranks, run_dir, plan, None, start)
        if resumed and run_dir is not None
        else start_run(ranks, run_dir, plan, None, start)
    )
    try:
        if resumed and run_dir is not None:  # again, now that the ledger is held
            ranks.lead(lambda: resume_reservation(run_dir, experiment, plan))
        schema = measure_columns(table, plan, begun.ledger, run_dir, training.seed, ranks)
        if run_dir is not None and ranks.rank == 0:
            write_schema(schema, run_dir / SCHEMA_FILE)
        problem = problem.encoded(schema)
        return build_trainer(experiment, problem, plan, run_dir, ranks, witness, begun), problem
    except BaseException:
        if begun.run is not None:
            begun.run.ledger.close()
        raise


def _write_reading(run_dir: Path, experiment: Experiment, problem: Problem) -> None:
    """Write down how the data is read and what the model takes, for whoever resumes or predicts."""
    if problem.schema is not None and not (run_dir / SCHEMA_FILE).exists():
        write_schema(problem.schema, run_dir / SCHEMA_FILE)
    if problem.kind == "generate":
        return
    if not (run_dir / INPUTS_FILE).exists():
        write_inputs(run_dir, inputs_of(experiment, problem))
        return
    noted = replace(read_inputs(run_dir / INPUTS_FILE), signature=None)
    if noted != inputs_of(experiment, problem, signed=False):
        raise FileError(
            f"{run_dir / INPUTS_FILE} does not say what this run takes and answers: it was edited. Put the old one "
            "back, or delete it to have it written anew."
        )


def _resume(run_dir: Path, progress: bool, ranks: Ranks) -> tuple[Trainer, Result, Problem]:
    """Continue a run from its directory alone, whatever stopped it; every rank must see the directory."""
    began = time.monotonic()
    experiment, problem = reload(run_dir)
    reading = time.monotonic() - began
    plan_file = run_dir / PLAN_FILE
    plan = load_plan(plan_file) if plan_file.exists() else _plan(experiment, problem)
    ranks.lead(lambda: resume_reservation(run_dir, experiment, plan))
    charged = ranks.lead(lambda: holds_charges(run_dir))
    measuring = problem.table is not None
    trainer, problem = _begin(Job(experiment, problem, plan), run_dir, ranks, None, resumed=charged)
    try:
        ranks.lead(lambda: _write_reading(run_dir, experiment, problem))
    except BaseException:
        trainer.close()
        raise
    result = (
        _resumed(trainer, run_dir, experiment, plan, progress)
        if charged and not measuring
        else trainer.fit(progress=progress)
    )
    result = _measured(result, trainer, problem)
    result = replace(result, seconds=result.seconds + reading)
    ranks.lead(lambda: _write_result(run_dir, result, trainer, experiment, problem))
    return trainer, result, problem


def _resumed(trainer: Trainer, run_dir: Path, experiment: Experiment, plan: Plan, progress: bool) -> Result:
    """Go on with a run once its ledger is held: until then somebody could count it for what it had charged so far."""
    trainer.load()
    try:
        trainer.ranks.lead(lambda: resume_reservation(run_dir, experiment, plan))
    except BaseException:
        trainer.close()
        raise
    return trainer.fit(progress=progress)


def reload(run_dir: Path) -> tuple[Experiment, Problem]:
    """The experiment that a run directory holds, and its data, loaded again."""
    path = run_dir / EXPERIMENT_FILE
    if not run_dir.is_dir():
        raise FileError(f"There is no run directory {run_dir}.")
    if (run_dir / FOLDS_FILE).is_file():
        raise FileError(
            f"{run_dir} is a cross-validation; the command that started it continues it, with the same --out."
        )
    if not path.is_file():
        raise FileError(
            f"{run_dir} holds no {EXPERIMENT_FILE}: it was not started by tacit train; resume it from Python."
        )
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise FileError(f"{path} is not from this version of Tacit, or was edited.")
    _check_certified(run_dir, record)
    experiment = from_record(record.get("experiment"), path)
    if not _same_source(record.get("source"), experiment):
        raise FileError(
            f"{experiment.data.source} is gone, or its content has changed since {run_dir} was started; the promise "
            "is about the data it began with."
        )
    schema_file = run_dir / SCHEMA_FILE
    schema = read_schema(schema_file) if schema_file.exists() else None
    unmeasured = schema is None and experiment.data.statistics == "private"
    with contextlib.chdir(_directory(record, path)):
        problem = load_data(experiment, schema, leave_open=unmeasured)
    _check_same_words(run_dir, experiment, problem)
    _check_same_features(run_dir, problem)
    return experiment, problem


def _check_same_words(run_dir: Path, experiment: Experiment, problem: Problem) -> None:
    """Refuse a word list that has changed: the weights are those of other words."""
    bags = None if problem.task is None else problem.task.bags
    if bags is None or not (run_dir / INPUTS_FILE).exists():
        return
    if read_inputs(run_dir / INPUTS_FILE).bags != bags:
        raise FileError(
            f"The word list {experiment.data.words} has changed since {run_dir} was started; put the old one back."
        )


def _check_same_features(run_dir: Path, problem: Problem) -> None:
    """Refuse features that are not those the run began on: one model cannot learn two."""
    if not (run_dir / INPUTS_FILE).exists():
        return
    noted = read_inputs(run_dir / INPUTS_FILE)
    if noted.features is not None and problem.task is not None and problem.task.image is not None:
        from tacit.data.features import check_signature  # only images need it

        check_signature(noted.features, problem.task.image.shape, noted.signature)


def _check_certified(run_dir: Path, record: dict[str, Any]) -> None:
    """Refuse a description that is not the one which a certificate of this run names: it would be certified again."""
    # What a budget has reserved is noted in the experiment, and may be noted again.
    changing = (EXPERIMENT_FILE,) if "budget" in record else ()
    check_certified(run_dir, run_dir, [name for name in DESCRIBING_FILES if name not in changing])


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """What came out of a run on disk, in plain values: figures, files and the certificate's words."""
    run_dir, result = outcome.run_dir, outcome.result
    assert run_dir is not None
    record = _result_record(run_dir, result, outcome.warnings)
    reserved = noted_reservation(run_dir)
    if reserved is not None:
        budget = read_budget(reserved.budget)
        record["budget"] = {"name": budget.name, "used": budget.used}
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


def _result_record(run_dir: Path, result: Result, warnings: tuple[str, ...]) -> dict[str, Any]:
    """What the result file and every --json have in common, under the names of both."""
    return {
        **dataclasses.asdict(result),
        "run": str(run_dir),
        "run_dir": str(run_dir),
        "held_out": dict(result.measured),
        "quality": [dataclasses.asdict(figure) for figure in quality_of(run_dir, result.measured)],
        "coordinates": result.dimension,
        "seconds": round(result.seconds, 2),
        "warnings": list(warnings),
    }


def _check_free(run_dir: Path) -> None:
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise FileError(f"{run_dir} already exists; resume the run in it, or choose another --out.")


def _claim(run_dir: Path, job: Job, reserved: Reservation | None) -> bool:
    """Make the directory ours by a file that only one process can create; whether the directory is new.

    What the run may cost is reserved before, where its data has a budget.
    """
    new = not run_dir.exists()
    cost = cost_of_plan(job.plan)
    if reserved is None:
        reserved = reserve_for(job.experiment, [cost], "train", str(run_dir))
    else:
        reserved = renewed(reserved, cost, str(run_dir))
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        record = _record(job) | ({} if reserved is None else {"budget": reserved.record})
        write_json(run_dir / EXPERIMENT_FILE, record, new=True)
    except BaseException as error:
        if reserved is not None:
            give_back(reserved)
        with contextlib.suppress(OSError):
            if new:
                run_dir.rmdir()  # fails, as it should, if another process has begun in it
        if isinstance(error, OSError):
            raise FileError(f"The run directory {run_dir} cannot be made: {error.strerror}.") from error
        raise
    return new


def _record(job: Job) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "experiment": to_record(job.experiment),
        "source": _trace(job.experiment),
        "directory": str(Path.cwd()),
    }


def _trace(experiment: Experiment) -> dict[str, int | str] | None:
    """What tells whether a user's file or folder is still the same: its content, or else when it was last written.

    The content is digested under a key that does not lie here. The size of a file would tell the length of a row.
    """
    path = Path(experiment.data.source)
    if experiment.data.source in LOADERS or not path.exists():
        return None
    trace: dict[str, int | str] = {"modified_ns": path.stat().st_mtime_ns} if path.is_file() else {}
    found = fingerprint(path)
    return trace if found is None else {**trace, "content": found.digest, "key": found.key}


def _same_source(noted: Any, experiment: Experiment) -> bool:
    """Whether the data is still what was noted.

    Its content decides where it was noted under a key that is here; otherwise the time it was last written, and the
    size, which version 0.1 noted as well.
    """
    path, known = Path(experiment.data.source), experiment.data.source in LOADERS
    if not isinstance(noted, dict):
        return known or not path.is_file()
    if known or not path.exists():
        return False
    found = fingerprint(path) if "content" in noted else None
    if found is not None and found.key == noted.get("key"):
        return bool(found.digest == noted["content"])
    about = path.stat()
    return (not path.is_file() or noted.get("modified_ns") == about.st_mtime_ns) and (
        "bytes" not in noted or noted["bytes"] == about.st_size
    )


def _directory(record: dict[str, Any], path: Path) -> Path:
    directory = Path(str(record.get("directory", "")))
    if not directory.is_dir():
        raise FileError(f"The directory {directory}, in which {path.parent} was started, is gone.")
    return directory


def _has_paid(run_dir: Path) -> bool:
    """Whether a release may have been charged."""
    if not (run_dir / LEDGER_FILE).exists():
        return (run_dir / CHECKPOINT_FILE).exists()
    try:
        return bool(read_ledger(run_dir / LEDGER_FILE).charges)
    except TacitError:
        return True


def _clear(run_dir: Path, *, whole: bool) -> None:
    """Remove what an attempt that never began has written, and give back what it had reserved."""
    reserved = noted_reservation(run_dir)
    if reserved is not None:
        give_back(reserved)
    if whole:
        shutil.rmtree(run_dir, ignore_errors=True)
        return
    for entry in run_dir.iterdir() if run_dir.is_dir() else ():
        if entry.is_file():
            entry.unlink(missing_ok=True)


def _measured(result: Result, trainer: Trainer, problem: Problem) -> Result:
    """The result with what only some kinds of task measure."""
    if problem.kind != "generate" or not result.finished:
        return result
    from tacit.jobs.language import perplexities

    return replace(result, measured={**result.measured, **perplexities(trainer, problem.held_out)})


def _write_result(
    run_dir: Path, result: Result, trainer: Trainer, experiment: Experiment, problem: Problem
) -> None:
    if result.finished:
        if problem.kind == "generate":
            from tacit.jobs.language import finish

            finish(run_dir, trainer)
        record_held_out(run_dir, trainer, problem, prevalence_of(experiment, problem))
        kept = without_rows(_warnings(problem, result, trainer))
        record = _result_record(run_dir, result, kept)
        write_json(run_dir / RESULT_FILE, without_infinities(record))
        reserved = noted_reservation(run_dir)
        if reserved is not None:
            settle_run(reserved, run_dir)
