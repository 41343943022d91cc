"""A column of texts as bags of words: what tacit train reads with --text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor
from torch.utils.data import TensorDataset

from tacit.data.bags import BUCKETS, LENGTH, Bags, read_word_list
from tacit.data.task import OfRows, Task
from tacit.errors import ArgumentError, FileError
from tacit.jobs.settings import DataConfig
from tacit.jobs.text_rows import text_rows

_MANY_WORDLESS = 0.2
"""Texts without a word are named where they are more than this share."""


def bags_task(config: DataConfig) -> Task:
    """The task of predicting a label from the words of a text."""
    if not Path(config.source).is_file():
        raise FileError(f"text names a column of a table, which {config.source!r} is not.")
    for name in ("schema", "drop", "statistics", "features", "validation"):
        if getattr(config, name):
            raise ArgumentError(f"{name} is not for texts: with --text the model reads that column alone.")
    bags = bags_of(config)
    if bags.listed:
        source = f"Words: {len(bags.listed):,} of the public list {Path(config.words or '').name}"
    else:
        what = "Words and pairs of neighbouring words" if bags.pairs else "Words"
        source = f"{what}: a fixed hash into {bags.buckets - 1:,} numbers"
    task = text_rows(config).task(
        config,
        bags.ids,
        f"{source}; of a text, the first {bags.length:,} different ones count.",
        vocabulary=bags.vocabulary,
        bags=bags,
    )
    assert isinstance(task.train, TensorDataset)
    return replace(task, warnings=(*task.warnings, *_wordless(task.train.tensors[0], bags)))


def _wordless(ids: Tensor, bags: Bags) -> list[str]:
    """A sentence where many texts have no word that counts, so that the intercept alone answers them."""
    without = int((ids == 0).all(1).sum())
    if without <= _MANY_WORDLESS * len(ids):
        return []
    what = "of the list" if bags.listed else "in them"
    return [
        OfRows(
            f"{without:,} of {len(ids):,} texts to train on have no word {what}, and the model answers all such texts "
            "alike: look whether the right column was named."
        )
    ]


def bags_of(config: DataConfig) -> Bags:
    """How the texts of ``config`` become numbers."""
    for name in ("buckets", "pairs"):
        if config.words is not None and getattr(config, name):
            raise ArgumentError(f"{name} are for hashed words; with a word list, leave them out.")
    return Bags(
        buckets=BUCKETS if config.buckets is None else config.buckets,
        length=LENGTH * (1 + config.pairs) if config.length is None else config.length,
        pairs=config.pairs,
        listed=() if config.words is None else read_word_list(config.words),
    )
