"""``tacit finetune``: a pretrained network, fine-tuned with differential privacy."""

from __future__ import annotations

from typing import Any

from tacit.cli import options
from tacit.cli.output import examples
from tacit.cli.train import train_job
from tacit.jobs.settings import FINETUNING

FINETUNE_EXAMPLE = examples(
    "tacit finetune pneumoniamnist --epsilon 4 --out runs/lungs",
    "tacit finetune photos/ --method sparta --active-ratio 0.1 --image-size 96 --epsilon 8",
    "tacit finetune reviews.csv --text review --target rating --model minilm --epsilon 8",
    "tacit finetune sst2 --model checkpoints/bert --method lora --lora-rank 4",
    "tacit finetune letters/ --task generate --model checkpoints/gpt2 --optimizer adam --epsilon 8",
    "tacit finetune photos/ --model mycode:net --weights net.safetensors --head 'fc.*'",
)


@options.job_options(
    options.offer("data", but=("schema", "drop", "tokenizer", "buckets", "pairs", "words")),
    options.offer("model", but=("width", "depth", "heads")),
    # The head is a part of the model, and what is trained follows from the method's name.
    options.offer("method", but=("head", "active", "explore"), names=FINETUNING),
    options.offer("privacy"),
    options.offer("training"),
)
def finetune(
    settings: options.Settings,
    config: options.ConfigFile = None,
    folds: options.Folds = None,
    out: options.RunDir = None,
    witness: options.WitnessFile = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Fine-tune a pretrained network with differential privacy: by default, its last layer.

    SOURCE is a data set by name (images, or sst2), a folder of images with a subfolder per class, or a table with a
    column of texts. The pretrained weights are public and cost nothing. The head is always trained; methods that choose
    rows (sparta and others) by default also train biases and norms. With --task generate a causal language model learns
    to write texts like those of a folder or of a column, by a low-rank adapter that peft can load. The rest of the run
    is as with tacit train, and tacit resume continues it.
    """
    generating = options.experiment_from(settings, config).data.task == "generate"
    method = "lora" if generating else FINETUNING[0]
    defaults: dict[str, dict[str, Any]] = {"method": {"name": method}}
    experiment = options.experiment_from(settings, config, defaults=defaults)
    train_job(
        experiment, "finetune", out, witness, folds=folds, dry_run=dry_run, quiet=quiet, as_json=as_json
    )
