"""``tacit train`` and ``tacit resume``: a private run from data to model and certificate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options
from tacit.cli.output import as_comments, console, examples, print_figures, print_json
from tacit.cli.plan import plan_record, print_plan
from tacit.errors import ArgumentError
from tacit.name_lists import counted, shortened, spelled
from tacit.runs.layout import CERTIFICATE_FILE
from tacit.waiting import progress_shown

if TYPE_CHECKING:
    from tacit.jobs.run import Job, Outcome
    from tacit.jobs.settings import Experiment

TRAIN_EXAMPLE = examples(
    "tacit train nhanes --epsilon 3 --out runs/diabetes",
    "tacit train fmnist --recipe best --epsilon 1",
    "tacit train customers.csv --target churn --epsilon 2 --dry-run",
    "tacit train reviews.csv --text review --target stars --epsilon 3",
    "tacit train photos/ --epsilon 8",
    "tacit train mycode:dataset --kind multiclass --model mycode:Net --epsilon 3",
)
_MOST_CLASSES, _SHOWN_CLASSES = 12, 8
RESUME_EXAMPLE = examples("tacit resume runs/diabetes")


@options.job_options(
    options.offer("data", but=("task", "tokenizer", "public")),
    options.offer(
        "model",
        but=(
            "weights",
            "head",
            "freeze",
            "frozen_blocks",
            "lora_rank",
            "lora_layers",
            "base_precision",
            "image_size",
        ),
    ),
    options.offer("method"),
    options.offer("privacy"),
    options.offer("training"),
)
def train(
    settings: options.Settings,
    config: options.ConfigFile = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="Settings tuned for a built-in data set; there is: best."),
    ] = None,
    folds: options.Folds = None,
    out: options.RunDir = None,
    witness: options.WitnessFile = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model with differential privacy and write model, ledger and certificate to a run directory.

    SOURCE is a data set by name (tacit data list), a CSV, Parquet or Excel file, a folder of images with a subfolder
    per class, or module:object. Settings not given are chosen from public facts; --dry-run shows them all.
    A recipe fills in what is not given otherwise; it was tuned on the same data, which ε does not cover.

    Under torchrun, as in torchrun --nproc-per-node 4 -m tacit train ..., all processes train one model together.

    Ctrl-C stops after the current step; tacit resume continues. With a seed the noise can be repeated, and the
    certificate says that the run is not for release.
    """
    experiment = options.experiment_from(settings, config, recipe=recipe)
    train_job(experiment, "train", out, witness, folds=folds, dry_run=dry_run, quiet=quiet, as_json=as_json)


def train_job(
    experiment: Experiment,
    command: str,
    out: Path | None,
    witness: Path | None,
    *,
    folds: int | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """What tacit train and tacit finetune do once the job is described."""
    from tacit.jobs.run import resolve, run_job  # PyTorch takes seconds to load

    finetune = command == "finetune"
    if folds is not None:
        if witness is not None:
            raise ArgumentError("--witness follows one run; leave it out with --folds.")
        cross_validate(
            experiment, folds, out, finetune=finetune, dry_run=dry_run, quiet=quiet, as_json=as_json
        )
        return
    if dry_run:
        with progress_shown(not (quiet or as_json)):
            job = resolve(experiment, finetune=finetune, only_plan=True)
        show_dry_run(job, as_json=as_json)
        return
    progress = not (quiet or as_json)
    with progress_shown(progress):
        outcome = run_job(
            experiment, out, command=command, finetune=finetune, progress=progress, witness=witness
        )
    report(outcome, as_json=as_json)


def cross_validate(
    experiment: Experiment,
    count: int,
    out: Path | None,
    *,
    finetune: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Say what a cross-validation costs, run it, and print what came out; exit code 1 if it was stopped."""
    from tacit.jobs.budget import cost_of_plan, forecast, forecast_sentence
    from tacit.jobs.folds import resolve_folds, run_folds

    hidden = quiet or as_json
    with progress_shown(not hidden):
        folds = resolve_folds(experiment, count, finetune=finetune, only_plan=dry_run)
    first = folds.jobs[0].experiment
    budget = forecast(first.data, [cost_of_plan(job.plan) for job in folds.jobs], first.training.seed)
    cost = {"epsilon": folds.promise.epsilon, "delta": folds.promise.delta, "touched": folds.promise.touched}
    if dry_run and as_json:
        print_json({"folds": count, "cost": cost, "budget": budget})
        return
    if dry_run:
        job = folds.jobs[0]
        whole = replace(job.experiment, data=replace(job.experiment.data, fold=None))
        show_dry_run(replace(job, experiment=whole), as_json=False)
    with as_comments() if dry_run else nullcontext():
        for sentence in (folds.sentence, *([] if budget is None else [forecast_sentence(budget)])):
            print(spelled(sentence), file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        return
    record = run_folds(
        folds,
        out,
        progress=not hidden,
        say=lambda name: None if hidden else print(spelled(name), file=sys.stderr),
    )
    print_json({**record, "budget": budget}) if as_json else print_folds(record)
    if not record["finished"]:
        raise typer.Exit(1)


def print_folds(record: dict[str, Any]) -> None:
    """Show what a cross-validation found: mean and standard deviation over its parts."""
    if not record["finished"]:
        console().print(f"Stopped. The same command with --out {record['run']} continues it.")
        return
    rows = [
        (f"held out: {name}".replace("_", " "), _mean_and_deviation(mean, record["deviation"][name]))
        for name, mean in record["mean"].items()
    ]
    print_figures(
        f"{len(record['runs'])} parts, mean ± standard deviation",
        [*rows, ("run", record["run"]), ("certificate", record["certificate"])],
    )
    for warning in record["warnings"]:
        console().print(f"Warning: {warning}", style="bold yellow")
    console().print(f"\n{record['statement']}")
    if not record["for_release"]:
        console().print("NOT FOR RELEASE: see the certificates of the runs.", style="bold red")


def _mean_and_deviation(mean: float | None, deviation: float | None) -> str:
    return "not a number" if mean is None or deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def resume(
    run: Annotated[Path, typer.Argument(help="Directory of a run that was stopped.", show_default=False)],
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Continue a run after Ctrl-C, a crash or a power cut, from its directory alone.

    Steps that were charged stay charged: steps that a crash has lost are not repeated, and the run ends that many
    steps earlier, with the noise as planned.
    """
    from tacit.jobs.run import run_job

    progress = not (quiet or as_json)
    with progress_shown(progress):
        outcome = run_job(run, command="resume", progress=progress)
    report(outcome, as_json=as_json)


def show_dry_run(job: Job, *, as_json: bool) -> None:
    """Everything that a run would do, with every default filled in, as a configuration that gives the same run."""
    from tacit.jobs.budget import cost_of_plan, forecast, forecast_sentence
    from tacit.jobs.facts import facts_of
    from tacit.jobs.held_out import warnings_of
    from tacit.jobs.settings import to_record, to_toml

    problem = job.problem
    facts = facts_of(problem)
    warnings = warnings_of(problem, {}, job.plan.epsilon)
    table = problem.table
    not_covered = problem.not_covered if table is None else table.measured_not_covered()
    budget = forecast(job.experiment.data, [cost_of_plan(job.plan)], job.experiment.training.seed)
    if as_json:
        print_json(
            {
                "experiment": to_record(job.experiment),
                "examples": problem.examples,
                "facts": [*([job.why] if job.why else []), *facts],
                "plan": plan_record(job.plan),
                "not_covered": not_covered,
                "warnings": warnings,
                "budget": budget,
            }
        )
        return
    print(to_toml(job.experiment))
    with as_comments():
        for sentence in (*([job.why] if job.why else []), *facts):
            console().print(shortened(sentence))
        print_plan(plan_record(job.plan))
        if budget is not None:
            console().print(forecast_sentence(budget))
        _print_not_covered(not_covered)
        for warning in warnings:
            console().print(f"Warning: {warning}", style="bold yellow")


def report(outcome: Outcome, *, as_json: bool) -> None:
    """Print what came out of a run; exit code 1 if it was stopped before its end."""
    from tacit.jobs.run import outcome_record

    if outcome.leads:
        record = outcome_record(outcome)
        print_json(record) if as_json else print_outcome(record)
    if not outcome.result.finished:
        raise typer.Exit(1)


def print_outcome(record: dict[str, Any]) -> None:
    """Show an outcome: figures, the certificate's statement, what it does not cover, and where it lies."""
    rows = [
        ("ε spent, δ", f"{record['epsilon']:.5g}, {record['delta']:g}"),
        ("steps", f"{record['steps']:,}"),
        ("active coordinates", f"{record['active']:,} of {record['coordinates']:,}"),
        *_held_out_rows(record),
        ("seconds", f"{record['seconds']:.1f}"),
        ("run", record["run"]),
    ]
    if "budget" in record:
        rows.append(("budget", f"{record['budget']['name']}: {100 * record['budget']['used']:.1f} % used"))
    if not record["finished"]:
        print_figures("Stopped", rows)
        console().print(f"The run is not finished; tacit resume {record['run']} continues it.")
        return
    rows += [("model", record["model"]), ("certificate", record["certificate"])]
    print_figures("Trained", rows)
    for reason in record["selections"].values():
        console().print(reason)
    for warning in record["warnings"]:
        console().print(f"Warning: {warning}", style="bold yellow")
    console().print(f"\n{record['statement']}")
    for reason in record["reasons_against_release"]:
        console().print(f"NOT FOR RELEASE: {reason}.", style="bold red")
    _print_not_covered(record["not_covered"], f"{record['run']}/{CERTIFICATE_FILE}")


def _held_out_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Figures with their intervals, where there are some; the others as they are."""
    from tacit.jobs.quality import Figure

    figures = [(f"held out: {one['name']}", str(Figure(**one))) for one in _folded(record["quality"])]
    if len(figures) < len(record["quality"]):
        left = len(record["quality"]) - len(figures)
        figures.append(("held out: recall", f"of {left:,} more classes: --json, or tacit report"))
    with_interval = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²"}
    known = {one["name"] for one in record["quality"]}
    plain = [
        (f"held out: {name}".replace("_", " "), f"{value:.4f}")
        for name, value in record["held_out"].items()
        if with_interval.get(name) not in known
    ]
    return [*plain, *figures]


def _folded(quality: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures without the recall of classes beyond the first, where there are many."""
    recalls = [one for one in quality if one["name"].startswith("recall of ")]
    if len(recalls) <= _MOST_CLASSES:
        return quality
    return [one for one in quality if one not in recalls[_SHOWN_CLASSES:]]


def _print_not_covered(sentences: Sequence[str], listed_in: str | None = None) -> None:
    console().print("\nNot covered by ε:")
    for sentence in sentences:
        shown = shortened(sentence) if listed_in is None else counted(sentence, listed_in)
        console().print(f"  - {shown}")
