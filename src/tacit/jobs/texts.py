"""Texts as token ids of a checkpoint's tokenizer: SST-2, or a column of a user's table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data.sources import default_data_dir
from tacit.data.table_task import labels
from tacit.data.task import Task
from tacit.data.text import PHRASES_NOT_COVERED, sst2_texts
from tacit.errors import ArgumentError, FileError, check_count
from tacit.jobs.settings import DataConfig
from tacit.jobs.text_rows import TextRows, text_rows
from tacit.models.encoder import checkpoint_dir, load_tokenizer

LENGTH = 48


def text_task(config: DataConfig) -> Task:
    """The task of predicting a label from a text, as ids of the tokenizer that ``config`` names."""
    assert config.tokenizer is not None
    if config.source != "sst2" and not Path(config.source).is_file():
        raise FileError(
            f"A text encoder reads sst2 or a table with a column of texts; {config.source!r} is neither."
        )
    tokenizer = load_tokenizer(config.tokenizer)  # says what is missing before a long table is read
    rows = sst2_rows(config) if config.source == "sst2" else text_rows(config)
    length = check_count("length", config.length or LENGTH, least=3)
    return rows.task(
        config,
        lambda texts: ids_of(tokenizer, texts, length),
        f"Token ids: the public tokenizer in {checkpoint_dir(config.tokenizer).name}, at most {length} of a text.",
        order=lambda ids: by_length(ids, int(tokenizer.pad_token_id)),
        vocabulary=len(tokenizer),
    )


def sst2_rows(config: DataConfig) -> TextRows:
    """The sentences of SST-2."""
    if config.fold is not None or config.test is not None:
        raise ArgumentError("sst2 says itself what to measure on; leave out fold and test.")
    if config.unit is not None:
        raise ArgumentError("unit is for tables, your own texts and image folders; sst2 has no authors.")
    where = Path(config.data_dir) if config.data_dir else default_data_dir()
    train, held_out = (
        (texts, labels(marks, binary=True)) for texts, marks in sst2_texts(where, download=True)
    )
    return TextRows(
        "sst2",
        (train, held_out),
        ("negative", "positive"),
        True,
        (PHRASES_NOT_COVERED,),
        ("Held-out sentences: the development part that was published with the data.",),
    )


def ids_of(tokenizer: object, texts: Sequence[str], length: int) -> NDArray[np.int64]:
    """Token ids of texts, each cut or filled up to ``length``."""
    encoded = tokenizer(  # type: ignore[operator]
        list(texts), padding="max_length", max_length=length, truncation=True, return_tensors="np"
    )
    return np.asarray(encoded["input_ids"], np.int64)


def by_length(ids: NDArray[np.int64], padding: int) -> NDArray[np.int64]:
    """The order of rows by their number of tokens, so that texts of one chunk are about equally long.

    Poisson sampling looks at each row alone, whatever the order: no release depends on it.
    """
    return np.argsort((ids != padding).sum(1), kind="stable")
