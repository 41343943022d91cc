"""Options that several commands take, each with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.errors import ArgumentError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Epsilon = Annotated[
    float | None, typer.Option("--epsilon", help="Promised ε; inf trains without noise. (default: 3)")
]
Delta = Annotated[
    float | None, typer.Option("--delta", help="Promised δ, below 1 / examples. (default: 1e-5 or less)")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", help="Planned batch size, the divisor of every step.")
]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Expected passes over the examples.")]
ActiveRatio = Annotated[
    str | None, typer.Option("--active-ratio", help="Share of coordinates to keep active, auto, or soft.")
]
Warmup = Annotated[
    str | None,
    typer.Option(
        "--warmup",
        help="Warm-up's share of steps and of ε, as 0.3,0.3; of steps alone: at the noise of the rest.",
    ),
]
ClipNorm = Annotated[
    str | None, typer.Option("--clip-norm", help="Bound on each example's gradient; or two, as 1,0.5.")
]
Accountant = Annotated[
    str | None, typer.Option("--accountant", help="pld (default), rdp or theorem-4.1 (the paper's).")
]
Score = Annotated[str | None, typer.Option("--score", help="What ranks coordinates: squares or movement.")]
Pooling = Annotated[str | None, typer.Option("--pooling", help="Average scores over row or column first.")]
PerLayer = Annotated[
    bool | None, typer.Option("--per-layer/--whole-model", help="Choose the top share in each parameter.")
]
Reset = Annotated[
    bool | None, typer.Option("--reset/--keep", help="Return silent coordinates to where they started.")
]
Explore = Annotated[
    float | None, typer.Option("--explore", help="on-topk: share of the support drawn at random.")
]
AlwaysActive = Annotated[
    list[str] | None,
    typer.Option("--always-active", help="Pattern of parameters in every support, as '*.bias'; repeatable."),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where built-in data sets lie (default: TACIT_DATA)")
]

Source = Annotated[
    str | None,
    typer.Argument(
        help="A data set by name, a CSV or Parquet file, a folder of images, or module:object.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file; options on the command line go before it.")
]
Target = Annotated[str | None, typer.Option("--target", help="Column of a table to predict.")]
SchemaFile = Annotated[
    str | None, typer.Option("--schema", help="Schema file with public ranges and categories.")
]
Model = Annotated[str | None, typer.Option("--model", help="logistic, mlp, tanh-cnn, ... or module:object.")]
Prevalence = Annotated[
    float | None,
    typer.Option("--prevalence", help="Public share of positives; predictions above it count as positive."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Reproducible noise: for experiments, not for release.")
]
LearningRate = Annotated[float | None, typer.Option("--learning-rate", help="Learning rate.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Kind = Annotated[
    str | None, typer.Option("--kind", help="binary, multiclass or regression, where it is unclear.")
]
Positive = Annotated[str | None, typer.Option("--positive", help="Value of the positive class.")]
SplitBy = Annotated[
    str | None,
    typer.Option("--split-by", help="Column whose equal values stay on one side of the split."),
]
Separator = Annotated[str | None, typer.Option("--separator", help="Separator of a CSV file.")]
HeldOut = Annotated[
    float | None, typer.Option("--held-out", help="Share of rows kept for measuring. (default: 0.2)")
]
Grey = Annotated[bool | None, typer.Option("--grey/--colour", help="Read images in grey.")]
Momentum = Annotated[float | None, typer.Option("--momentum", help="Momentum of sgd.")]
WeightDecay = Annotated[float | None, typer.Option("--weight-decay", help="On active coordinates only.")]
RateSchedule = Annotated[
    str | None, typer.Option("--schedule", help="Learning rate over the run: constant, linear, cosine.")
]
Average = Annotated[
    float | None, typer.Option("--average", help="Decay of an average of the weights, as 0.99.")
]
ChunkSize = Annotated[
    int | None, typer.Option("--chunk-size", help="Examples in memory at once; changes no result.")
]
Isolation = Annotated[
    str | None,
    typer.Option(
        "--isolation",
        help="How examples are kept apart: probed (default), or construction, each by itself, which is slower.",
    ),
]
RunDir = Annotated[Path | None, typer.Option("--out", "--run", help="Run directory. (default: runs/NAME-N)")]
WitnessFile = Annotated[
    Path | None,
    typer.Option(
        "--witness",
        help="File outside of the run directory, best on another machine, that notes every release too.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show every setting and the plan; no run. Fixed features are computed and kept."
    ),
]


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """The numbers in a text such as 0.3,0.3."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"{option} takes numbers separated by commas, got {text!r}.") from None


def number(option: str, text: str | None) -> float | None:
    """The one number in a text."""
    found = numbers(option, text)
    if found is not None and len(found) != 1:
        raise ArgumentError(f"{option} takes one number, got {text!r}.")
    return found[0] if found else None


def ratio(text: str | None) -> float | str | None:
    """An active ratio: a number or the word auto or soft."""
    return text if text is None or text in ("auto", "soft") else number("--active-ratio", text)


def one_or_more(option: str, text: str | None) -> float | tuple[float, ...] | None:
    """One number, or several separated by commas."""
    found = numbers(option, text)
    return found[0] if found is not None and len(found) == 1 else found


def refuse_several_processes(command: str) -> None:
    """Refuse, before anything is loaded, a command that trains in one process where torchrun has started several."""
    from tacit.distributed.joining import processes  # PyTorch takes seconds to load

    if processes() > 1:
        raise ArgumentError(
            f"tacit {command} trains in one process, and this is one of {processes()} that were started together; "
            "start it without torchrun, or use tacit train."
        )
