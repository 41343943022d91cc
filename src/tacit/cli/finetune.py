"""``tacit finetune``: a pretrained network, fine-tuned with differential privacy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tacit.cli import options
from tacit.cli.describe import described
from tacit.cli.output import examples
from tacit.cli.train import free_directory, report, show_dry_run

EXAMPLE = examples(
    "tacit finetune pneumoniamnist --epsilon 4 --out runs/lungs",
    "tacit finetune photos/ --method sparta --active-ratio 0.1 --image-size 96 --epsilon 8",
    "tacit finetune reviews.csv --text review --target rating --model minilm --epsilon 8",
    "tacit finetune sst2 --model checkpoints/bert --method lora --lora-rank 4",
    "tacit finetune photos/ --model mycode:net --weights net.safetensors --head 'fc.*'",
)


def finetune(
    source: options.Source = None,
    config: options.ConfigFile = None,
    target: options.Target = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Column of a table that holds the texts.")
    ] = None,
    kind: options.Kind = None,
    positive: options.Positive = None,
    split_by: options.SplitBy = None,
    separator: options.Separator = None,
    held_out: options.HeldOut = None,
    prevalence: options.Prevalence = None,
    grey: options.Grey = None,
    data_dir: options.DataDir = None,
    train_on: Annotated[
        int | None, typer.Option("--examples", help="Train on the first ones only, as for a trial.")
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", help="Tokens of a text that are read at most. (default: 48)")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", help="Side to which images are resized. (default: 64)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="mobilenet-v2, minilm, a transformers directory or module:object. (default: by the data)",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", help="Safetensors file with the public weights. (default: the model's own)"
        ),
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option("--head", help="Pattern of the fresh head's parameters; repeatable.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            help="Pattern of parameters not to train, or none; repeatable. (default: embeddings of texts)",
        ),
    ] = None,
    frozen_blocks: Annotated[
        int | None,
        typer.Option("--frozen-blocks", help="Blocks at the beginning to freeze and to compute only once."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="sparta (default), full, last-layer, bitfit, random-rows, magnitude-rows, lora or tp-topk.",
        ),
    ] = None,
    active_ratio: Annotated[
        str | None,
        typer.Option(
            "--active-ratio", help="Share of the rows (tp-topk: coordinates) to train. (default: 0.1)"
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Number of rows to train in each layer, instead of a share.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", help="What ranks rows: absolute, magnitude, saliency or row-norms."),
    ] = None,
    per_layer: options.PerLayer = None,
    selection_epochs: Annotated[
        float | None, typer.Option("--selection-epochs", help="sparta: epochs that score rows. (default: 1)")
    ] = None,
    selection_budget: Annotated[
        float | None,
        typer.Option(
            "--selection-budget", help="sparta: share of ε before fine-tuning, by noise of its own."
        ),
    ] = None,
    head_epochs: Annotated[
        float | None,
        typer.Option("--head-epochs", help="sparta: epochs that train the head first. (default: 0)"),
    ] = None,
    clip_order: Annotated[
        str | None, typer.Option("--clip-order", help="sparta: mask-then-clip (default) or clip-then-mask.")
    ] = None,
    always_active: options.AlwaysActive = None,
    warmup: options.Warmup = None,
    lora_rank: Annotated[
        int | None, typer.Option("--lora-rank", help="lora: rank of the corrections. (default: 8)")
    ] = None,
    lora_layers: Annotated[
        list[str] | None,
        typer.Option("--lora-layers", help="lora: pattern of layers to correct; repeatable."),
    ] = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    batch_size: options.BatchSize = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", help="Expected passes over the examples. (default: 5)")
    ] = None,
    clip_norm: options.ClipNorm = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="sgd (default) or adam.")] = None,
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
    """Fine-tune a pretrained network with differential privacy: by default, the rows that SPARTA selects privately.

    SOURCE is a data set by name (images, or sst2), a folder of images with a subfolder per class, or a table with a
    column of texts. The pretrained weights are public and cost nothing. The head, and by default biases and norms, are
    always trained; the rest of the run is as with tacit train, and tacit resume goes on with it.
    """
    changes: dict[str, dict[str, Any]] = {
        "data": {
            "source": source,
            "target": target,
            "text": text,
            "kind": kind,
            "positive": positive,
            "split_by": split_by,
            "separator": separator,
            "held_out": held_out,
            "prevalence": prevalence,
            "grey": grey,
            "data_dir": None if data_dir is None else str(data_dir),
            "examples": train_on,
            "length": length,
            "image_size": image_size,
        },
        "model": {
            "name": model,
            "weights": weights,
            "head": head or None,
            "freeze": freeze or None,
            "frozen_blocks": frozen_blocks,
            "lora_rank": lora_rank,
            "lora_layers": lora_layers or None,
            "image_size": image_size,
        },
        "method": {
            "name": method,
            "active_ratio": options.ratio(active_ratio),
            "rows": rows,
            "score": score,
            "per_layer": per_layer,
            "selection_epochs": selection_epochs,
            "selection_budget": selection_budget,
            "head_epochs": head_epochs,
            "clip_order": clip_order,
            "always_active": always_active or None,
            "warmup": options.numbers("--warmup", warmup),
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
    experiment = described(
        config, changes, defaults={"method": {"name": "sparta"}, "data": {"image_size": 64}}
    )
    options.refuse_several_processes("finetune")
    from tacit.jobs.run import prepare_finetuning, start  # PyTorch takes seconds to load

    prepared = prepare_finetuning(experiment)
    if dry_run:
        show_dry_run(prepared, as_json=as_json)
        return
    run_dir = (out or free_directory(prepared.problem.name)).absolute()
    result = start(prepared, run_dir, progress=not (quiet or as_json), witness=witness)
    report(run_dir, result, as_json=as_json)
