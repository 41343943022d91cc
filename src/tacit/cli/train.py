"""``tacit train`` and ``tacit resume``: a private run from data to model and certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options
from tacit.cli.output import as_comments, console, examples, print_figures, print_json
from tacit.cli.plan import plan_record, print_plan
from tacit.name_lists import counted, shortened
from tacit.runs.layout import CERTIFICATE_FILE

if TYPE_CHECKING:
    from tacit.jobs.run import Job, Outcome
    from tacit.jobs.settings import Experiment

TRAIN_EXAMPLE = examples(
    "tacit train nhanes --epsilon 3 --out runs/diabetes",
    "tacit train fmnist --recipe best --epsilon 1",
    "tacit train customers.csv --target churn --epsilon 2 --dry-run",
    "tacit train photos/ --model tanh-cnn --epsilon 8",
    "tacit train mycode:dataset --kind multiclass --model mycode:Net --epsilon 3",
)
RESUME_EXAMPLE = examples("tacit resume runs/diabetes")


@options.job_options(
    options.offer("data", but=("text", "task", "tokenizer", "length")),
    options.offer(
        "model",
        but=("weights", "head", "freeze", "frozen_blocks", "lora_rank", "lora_layers", "image_size"),
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
    train_job(experiment, "train", out, witness, dry_run=dry_run, quiet=quiet, as_json=as_json)


def train_job(
    experiment: Experiment,
    command: str,
    out: Path | None,
    witness: Path | None,
    *,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """What tacit train and tacit finetune do once the job is described."""
    from tacit.jobs.run import resolve, run_job  # PyTorch takes seconds to load

    finetune = command == "finetune"
    if dry_run:
        show_dry_run(resolve(experiment, finetune=finetune), as_json=as_json)
        return
    progress = not (quiet or as_json)
    report(
        run_job(experiment, out, command=command, finetune=finetune, progress=progress, witness=witness),
        as_json=as_json,
    )


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

    report(run_job(run, command="resume", progress=not (quiet or as_json)), as_json=as_json)


def show_dry_run(job: Job, *, as_json: bool) -> None:
    """Everything that a run would do, with every default filled in, as a configuration that gives the same run."""
    from tacit.jobs.budget import cost_of_plan, forecast, forecast_sentence
    from tacit.jobs.facts import facts_of
    from tacit.jobs.settings import to_record, to_toml

    problem = job.problem
    facts = facts_of(problem)
    budget = forecast(job.experiment.data.source, [cost_of_plan(job.plan)])
    if as_json:
        print_json(
            {
                "experiment": to_record(job.experiment),
                "examples": problem.examples,
                "facts": facts,
                "plan": plan_record(job.plan),
                "not_covered": problem.not_covered,
                "warnings": problem.task.warnings if problem.task is not None else (),
                "budget": budget,
            }
        )
        return
    print(to_toml(job.experiment))
    with as_comments():
        for sentence in facts:
            console().print(shortened(sentence), markup=False)
        print_plan(plan_record(job.plan))
        if budget is not None:
            console().print(forecast_sentence(budget), markup=False)
        _print_not_covered(problem.not_covered)
        for warning in problem.task.warnings if problem.task is not None else ():
            console().print(f"Warning: {warning}", style="bold yellow", markup=False)


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
        console().print(f"Warning: {warning}", style="bold yellow", markup=False)
    console().print(f"\n{record['statement']}")
    for reason in record["reasons_against_release"]:
        console().print(f"NOT FOR RELEASE: {reason}.", style="bold red")
    _print_not_covered(record["not_covered"], f"{record['run']}/{CERTIFICATE_FILE}")


def _held_out_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Figures with their intervals, where there are some; the others as they are."""
    from tacit.jobs.quality import Figure

    figures = [(f"held out: {one['name']}", str(Figure(**one))) for one in record["quality"]]
    with_interval = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²"}
    known = {one["name"] for one in record["quality"]}
    plain = [
        (f"held out: {name}".replace("_", " "), f"{value:.4f}")
        for name, value in record["held_out"].items()
        if with_interval.get(name) not in known
    ]
    return [*plain, *figures]


def _print_not_covered(sentences: Sequence[str], listed_in: str | None = None) -> None:
    console().print("\nNot covered by ε:")
    for sentence in sentences:
        shown = shortened(sentence) if listed_in is None else counted(sentence, listed_in)
        console().print(f"  - {shown}")
