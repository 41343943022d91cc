"""``tacit train`` and ``tacit resume``: a private run from data to model and certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options
from tacit.cli.describe import described
from tacit.cli.output import console, examples, print_figures, print_json
from tacit.cli.plan import plan_record, print_plan
from tacit.errors import ArgumentError

if TYPE_CHECKING:
    from tacit.jobs.run import Prepared
    from tacit.training.fitting import Result

TRAIN_EXAMPLE = examples(
    "tacit train nhanes --epsilon 3 --out runs/diabetes",
    "tacit train fmnist --recipe best --epsilon 1",
    "tacit train customers.csv --target churn --epsilon 2 --dry-run",
    "tacit train photos/ --model tanh-cnn --epsilon 8",
    "tacit train mycode:dataset --kind multiclass --model mycode:Net --epsilon 3",
)
RESUME_EXAMPLE = examples("tacit resume runs/diabetes")


def train(
    source: options.Source = None,
    config: options.ConfigFile = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="Settings that we measured for a built-in data set, as best."),
    ] = None,
    target: options.Target = None,
    schema: options.SchemaFile = None,
    kind: options.Kind = None,
    positive: options.Positive = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Column not to use; repeatable.")] = None,
    split_by: options.SplitBy = None,
    separator: options.Separator = None,
    held_out: options.HeldOut = None,
    prevalence: options.Prevalence = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", help="Side to which images are resized. (default: 32)")
    ] = None,
    grey: options.Grey = None,
    data_dir: options.DataDir = None,
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            help="Fixed image features: scattering, scattering-on-black, scattering-upright or patches.",
        ),
    ] = None,
    model: options.Model = None,
    width: Annotated[
        int | None, typer.Option("--width", help="Units per layer of mlp and text models.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", help="Hidden layers of mlp, blocks of text-transformer.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="tp-topk (default), dp-sgd, tp-rand, on-rand, on-topk or rs."),
    ] = None,
    active_ratio: options.ActiveRatio = None,
    warmup: options.Warmup = None,
    score: options.Score = None,
    pooling: options.Pooling = None,
    per_layer: options.PerLayer = None,
    reset: options.Reset = None,
    explore: options.Explore = None,
    always_active: options.AlwaysActive = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    batch_size: options.BatchSize = None,
    epochs: options.Epochs = None,
    clip_norm: options.ClipNorm = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="sgd or adam.")] = None,
    learning_rate: options.LearningRate = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.RateSchedule = None,
    average: options.Average = None,
    chunk_size: options.ChunkSize = None,
    isolation: options.Isolation = None,
    seed: options.Seed = None,
    out: options.RunDir = None,
    witness: options.WitnessFile = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model with differential privacy and write model, ledger and certificate to a run directory.

    SOURCE is a data set by name (tacit data list), a CSV or Parquet file, a folder of images with a subfolder
    per class, or module:object. Settings not given are chosen from public facts; --dry-run shows them all.
    A recipe fills in what is not given otherwise; it was tuned on the same data, which ε does not cover.

    Under torchrun, as torchrun --nproc-per-node 4 -m tacit train ..., all processes train one model together.

    Ctrl-C stops after the current step; tacit resume goes on. With a seed the noise can be repeated, and the
    certificate says that the run is not for release.
    """
    changes: dict[str, dict[str, Any]] = {
        "data": {
            "source": source,
            "target": target,
            "schema": schema,
            "kind": kind,
            "positive": positive,
            "drop": drop or None,
            "split_by": split_by,
            "separator": separator,
            "held_out": held_out,
            "prevalence": prevalence,
            "image_size": image_size,
            "grey": grey,
            "data_dir": None if data_dir is None else str(data_dir),
            "features": features,
        },
        "model": {"name": model, "width": width, "depth": depth},
        "method": {
            "name": method,
            "active_ratio": options.ratio(active_ratio),
            "warmup": options.numbers("--warmup", warmup),
            "score": score,
            "pooling": pooling,
            "per_layer": per_layer,
            "reset": reset,
            "explore": explore,
            "always_active": always_active or None,
        },
        "privacy": {"epsilon": epsilon, "delta": delta, "accountant": accountant},
        "training": {
            "batch_size": batch_size,
            "epochs": epochs,
            "clip_norm": options.one_or_more("--clip-norm", clip_norm),
            "optimizer": optimizer,
            "learning_rate": learning_rate,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "schedule": schedule,
            "average": average,
            "chunk_size": chunk_size,
            "isolation": isolation,
            "seed": seed,
        },
    }
    experiment = described(config, changes, recipe=recipe)
    from tacit.distributed import join  # PyTorch takes seconds to load
    from tacit.jobs.run import prepare, start

    prepared = prepare(experiment)
    if dry_run:
        show_dry_run(prepared, as_json=as_json)
        return
    ranks = join()
    run_dir = Path(ranks.lead(lambda: str((out or free_directory(prepared.problem.name)).absolute())))
    result = start(prepared, run_dir, progress=not (quiet or as_json), ranks=ranks, witness=witness)
    report(run_dir, result, as_json=as_json, shown=ranks.rank == 0)


def resume(
    run: Annotated[Path, typer.Argument(help="Directory of a run that was stopped.", show_default=False)],
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Go on with a run after Ctrl-C, a crash or a power cut, from its directory alone.

    Steps that were charged stay charged: those that a crash has lost are not made up for, and the run ends as many
    steps earlier, with the noise as planned.
    """
    from tacit.distributed import join
    from tacit.jobs.run import resume as resume_run

    run_dir, ranks = run.absolute(), join()
    result = resume_run(run_dir, progress=not (quiet or as_json), ranks=ranks)
    report(run_dir, result, as_json=as_json, shown=ranks.rank == 0)


def show_dry_run(prepared: Prepared, *, as_json: bool) -> None:
    """Everything that a run would do, with every default filled in."""
    from tacit.jobs.description import to_record, to_toml

    problem = prepared.problem
    if as_json:
        print_json(
            {
                "experiment": to_record(prepared.experiment),
                "examples": problem.examples,
                "plan": plan_record(prepared.plan),
                "not_covered": problem.not_covered,
            }
        )
        return
    print(to_toml(prepared.experiment))
    print_plan(plan_record(prepared.plan))
    _print_not_covered(problem.not_covered)


def report(run_dir: Path, result: Result, *, as_json: bool, shown: bool = True) -> None:
    """Print what came out of a run; exit code 1 if it was stopped before its end."""
    from tacit.jobs.run import outcome_record

    if shown:
        record = outcome_record(run_dir, result)
        print_json(record) if as_json else print_outcome(record)
    if not result.finished:
        raise typer.Exit(1)


def print_outcome(record: dict[str, Any]) -> None:
    """Show an outcome: figures, the certificate's statement, what it does not cover, and where it lies."""
    rows = [
        ("ε spent, δ", f"{record['epsilon']:.5g}, {record['delta']:g}"),
        ("steps", f"{record['steps']:,}"),
        ("active coordinates", f"{record['active']:,} of {record['coordinates']:,}"),
        *(
            (f"held out: {name}".replace("_", " "), f"{value:.4f}")
            for name, value in record["held_out"].items()
        ),
        ("seconds", f"{record['seconds']:.1f}"),
        ("run", record["run"]),
    ]
    if not record["finished"]:
        print_figures("Stopped", rows)
        console().print(f"The run is not finished; tacit resume {record['run']} goes on with it.")
        return
    rows += [("model", record["model"]), ("certificate", record["certificate"])]
    print_figures("Trained", rows)
    for reason in record["selections"].values():
        console().print(reason)
    console().print(f"\n{record['statement']}")
    for reason in record["reasons_against_release"]:
        console().print(f"NOT FOR RELEASE: {reason}.", style="bold red")
    _print_not_covered(record["not_covered"])


def _print_not_covered(sentences: Any) -> None:
    console().print("\nNot covered by ε:")
    for sentence in sentences:
        console().print(f"  - {sentence}")


def free_directory(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist."""
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(name).stem) or "run"
    for number in range(1, 10_000):
        path = Path("runs") / f"{stem}-{number}"
        if not path.exists():
            return path
    raise ArgumentError(f"runs/ is full of runs of {stem}; choose a directory with --out.")
