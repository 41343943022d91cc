"""Fine-tuning a causal language model to generate texts like private ones: its data, its model, its perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tacit.data.table_file import read_columns, row_keys
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Task, held_out_mask
from tacit.data.units import count_words, unit_column, unit_words
from tacit.errors import ArgumentError, FileError, check_count
from tacit.jobs.settings import DataConfig, Experiment
from tacit.losses import token_losses
from tacit.models.encoder import checkpoint_dir, load_tokenizer
from tacit.models.language import check_precision, load_language_model, save_adapter
from tacit.models.pretrained import LORA_RANK
from tacit.runs.layout import ADAPTER_DIRECTORY
from tacit.training.trainer import Trainer
from tacit.units import numbered

LENGTH = 128
EPOCHS = 5.0
CHUNK_SIZE = 16
Blocks = list[list[int]]


class Tokens(Dataset[dict[str, Tensor]]):
    """Token ids in rows of one length, with a mask where they have ended."""

    def __init__(self, blocks: Blocks, length: int, padding: int) -> None:
        self.ids = torch.full((len(blocks), length), padding)
        self.mask = torch.zeros(len(blocks), length, dtype=torch.int64)
        for row, block in enumerate(blocks):
            self.ids[row, : len(block)] = torch.tensor(block, dtype=torch.int64)
            self.mask[row, : len(block)] = 1

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[place], "attention_mask": self.mask[place]}

    def __getitems__(self, places: Sequence[int]) -> list[dict[str, Tensor]]:
        return [self[place] for place in places]


def with_language_model(experiment: Experiment) -> Experiment:
    """``experiment`` with everything decided that is particular to language models."""
    data, model, training, method = experiment.data, experiment.model, experiment.training, experiment.method
    if model.name is None:
        raise ArgumentError("Say --model with the directory of a causal language model of transformers.")
    if method.name != "lora" or method.given:
        raise ArgumentError(
            "A model that generates is fine-tuned by --method lora, which has no other options."
        )
    for name, value in (
        ("public", data.public),
        ("features", data.features),
        ("test", data.test),
        ("fold", data.fold),
        ("validation", data.validation),
        ("weights", model.weights),
        ("head", model.head),
        ("frozen_blocks", model.frozen_blocks),
    ):
        if value is not None:
            raise ArgumentError(f"{name} is for classifiers; leave it out with --task generate.")
    if model.base_precision is not None:
        check_precision(model.base_precision)
    rate = training.learning_rate
    return replace(
        experiment,
        data=replace(data, tokenizer=model.name),
        model=replace(model, lora_rank=LORA_RANK if model.lora_rank is None else model.lora_rank),
        method=method.changed("dp-sgd"),
        training=replace(
            training,
            epochs=EPOCHS if training.epochs is None else training.epochs,
            chunk_size=training.chunk_size or CHUNK_SIZE,
            learning_rate=(0.1 if training.optimizer == "sgd" else 1e-3) if rate is None else rate,
        ),
    )


def language_task(config: DataConfig) -> Task:
    """The texts of a folder or of a table's column, as token ids.

    A file of a folder is one unit of privacy, however long: it is cut into rows of ``length`` tokens. A row of a table
    is one example, of which the first ``length`` tokens are read, unless ``unit`` says whose it is.
    """
    if config.tokenizer is None:
        raise ArgumentError(
            "task generate is for tacit finetune, with --model and the directory of a language model."
        )
    if config.target is not None:
        raise ArgumentError("There is no target to predict with --task generate; leave it out.")
    tokenizer = load_tokenizer(config.tokenizer)
    length = check_count("length", config.length or LENGTH, least=2)
    source = Path(config.source)
    keys: Sequence[str | bytes]
    if source.is_dir():
        texts, owners, keys, split = *_of_folder(config, source), "its path"
        words = "one file with all its text"
        public = "The number of files in the training data: it is used and shown as a public number."
    elif source.is_file():
        texts, owners, keys, split = _of_table(config)
        words = "" if config.unit is None else unit_words(config.unit)
        public = COUNT_NOT_COVERED if config.unit is None else count_words(config.unit)
    else:
        raise FileError(
            f"{config.source!r} is neither a folder of .txt files nor a table with a column of texts."
        )
    away = held_out_mask(keys, config.held_out)
    codes, _ = numbered(owners)
    parts: list[tuple[Blocks, list[int]]] = [([], []), ([], [])]
    for text, owner, out in zip(texts, codes, away, strict=True):
        found = _blocks(tokenizer, text, length, whole=source.is_dir())
        parts[int(out)][0].extend(found)
        parts[int(out)][1].extend([int(owner)] * len(found))
    if not parts[0][0] or (config.held_out and not parts[1][0]):
        raise FileError(f"{config.source} has too few texts to train on and to hold out.")
    padding = int(tokenizer.pad_token_id)
    train, held_out = (Tokens(blocks, length, padding) if blocks else None for blocks, _ in parts)
    grouped = bool(words)
    assert train is not None
    return Task(
        name=source.name,
        train=train,
        held_out=held_out,
        kind="generate",
        input_shape=(length,),
        vocabulary=len(tokenizer),
        not_covered=(HELD_OUT_NOT_COVERED, public),
        unit=words,
        units=np.array(parts[0][1]) if grouped else None,
        held_out_units=np.array(parts[1][1]) if grouped else None,
        public_sources=(
            f"Token ids: the public tokenizer in {checkpoint_dir(config.tokenizer).name}, in rows of {length}.",
            f"Held-out texts: a fixed hash of {split}, one by one.",
        ),
    )


def _of_folder(config: DataConfig, folder: Path) -> tuple[list[str], list[str], list[str]]:
    if config.unit is not None:
        raise ArgumentError("In a folder of texts every file is a unit; leave unit out.")
    files = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not files:
        raise FileError(f"{folder} holds no .txt files.")
    names = [file.relative_to(folder).as_posix() for file in files]
    try:
        texts = [file.read_text(encoding=config.encoding or "utf-8") for file in files]
    except (OSError, UnicodeError, LookupError) as error:
        raise FileError(f"The texts of {folder} cannot be read: {error}.") from error
    return texts, names, names


def _of_table(config: DataConfig) -> tuple[list[str], list[str], Sequence[str | bytes], str]:
    table = read_columns(config.source, separator=config.separator, encoding=config.encoding)
    if config.text is None:
        raise ArgumentError(f"Say --text: which column of {config.source} holds the texts?")
    texts = list(table.column(config.text))
    if config.unit is None:
        keys = row_keys(table)
        return texts, [str(row) for row in range(len(texts))], keys, "each row's contents"
    owners = unit_column(table, config.unit, config.text)
    return texts, owners, owners, f"the column {config.unit!r}"


def _blocks(tokenizer: Any, text: str, length: int, *, whole: bool) -> Blocks:
    """Rows of token ids of a text and its end: all of it, or its beginning. A row needs two to have a next one."""
    ids = list(
        tokenizer(text, truncation=not whole, **({} if whole else {"max_length": length}))["input_ids"]
    )
    end = tokenizer.eos_token_id
    if end is not None and ids[-1:] != [end] and (whole or len(ids) < length):
        ids.append(int(end))
    rows = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [row for row in rows if len(row) > 1]


def build_language_model(experiment: Experiment) -> nn.Module:
    """The model of an experiment, with a fresh adapter."""
    config = experiment.model
    assert config.name is not None
    assert config.lora_rank is not None
    model: Any = load_language_model(config.name, config.lora_rank, config.lora_layers, config.base_precision)
    most, asked = getattr(model.config, "max_position_embeddings", None), experiment.data.length or LENGTH
    if isinstance(most, int) and asked > most:
        raise ArgumentError(
            f"The model reads at most {most} tokens at once, not {asked}; say --length {most}."
        )
    built: nn.Module = model
    return built


def finish(run_dir: Path, trainer: Trainer) -> None:
    """Write the adapter of a finished run."""
    with trainer.final_weights():
        save_adapter(trainer.model, run_dir / ADAPTER_DIRECTORY)


def perplexities(trainer: Trainer, held_out: Dataset[Any] | None) -> dict[str, float]:
    """exp of the mean loss per token of the held-out texts: of the model, and of the one it was made from."""
    if held_out is None:
        return {}
    model: Any = trainer.model
    with trainer.final_weights():
        found = {"perplexity": _perplexity(model, held_out)}
    with model.disable_adapter():
        return {**found, "perplexity_before": _perplexity(model, held_out)}


@torch.no_grad()
def _perplexity(model: nn.Module, dataset: Dataset[Any]) -> float:
    training = model.training
    model.eval()
    total, count = 0.0, 0
    try:
        device = next(model.parameters()).device
        for batch in DataLoader(dataset, batch_size=CHUNK_SIZE):
            losses, counted = token_losses(model, {key: value.to(device) for key, value in batch.items()})
            total += float(losses.double().sum())
            count += int(counted.sum())
    finally:
        model.train(training)
    return math.exp(total / count) if total / count < 700 else math.inf
