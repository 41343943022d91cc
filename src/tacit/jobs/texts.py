"""Texts as token ids of a checkpoint's tokenizer: SST-2, or a column of a user's table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from tacit.data.encode import encode_target
from tacit.data.infer import guess_target
from tacit.data.schema import Target
from tacit.data.sources import default_data_dir
from tacit.data.table_file import read_columns, row_keys
from tacit.data.table_task import labels, not_covered_by, tensors
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Task, held_out_mask
from tacit.data.text import PHRASES_NOT_COVERED, sst2_texts
from tacit.data.units import Ids, count_words, parted, unit_column, unit_words
from tacit.errors import ArgumentError, FileError, check_count
from tacit.jobs.settings import DataConfig
from tacit.models.encoder import checkpoint_dir, load_tokenizer

LENGTH = 48
Part = tuple[list[str], NDArray[np.generic]]


def text_task(config: DataConfig) -> Task:
    """The task of predicting a label from a text, as ids of the tokenizer that ``config`` names."""
    if config.source == "sst2":
        if config.fold is not None or config.test is not None:
            raise ArgumentError("sst2 says itself what to measure on; leave out fold and test.")
        if config.unit is not None:
            raise ArgumentError(
                "unit is for tables, texts of one's own and image folders; sst2 has no authors."
            )
        where = Path(config.data_dir) if config.data_dir else default_data_dir()
        train, held_out = (
            (texts, labels(marks, binary=True)) for texts, marks in sst2_texts(where, download=True)
        )
        return _task(
            config,
            "sst2",
            (train, held_out),
            ("negative", "positive"),
            (PHRASES_NOT_COVERED,),
            ("Held-out sentences: the development part that was published with the data.",),
        )
    if not Path(config.source).is_file():
        raise FileError(
            f"A text encoder reads sst2 or a table with a column of texts; {config.source!r} is neither."
        )
    return _of_table(config)


def _of_table(config: DataConfig) -> Task:
    table = read_columns(config.source, separator=config.separator, encoding=config.encoding)
    if config.text is None or config.target is None:
        raise ArgumentError(
            f"Say --text and --target: which column of {config.source} holds the texts, which the labels?"
        )
    texts = table.column(config.text)
    goal = guess_target(table, config.target, config.kind, config.positive)
    if goal.kind == "regression":
        raise ArgumentError(
            f"The target {goal.name!r} is a number; a text encoder is fine-tuned for classes."
        )
    y, known = encode_target(table, goal)
    ids = None if config.unit is None else unit_column(table, config.unit, goal.name)
    if ids is not None and config.split_by not in (None, config.unit):
        raise ArgumentError("unit decides the split as well: its rows stay together; leave split_by out.")
    keys = table.column(config.split_by) if config.split_by is not None else row_keys(table)
    share = 0.0 if config.test is not None else config.held_out_part
    away = held_out_mask(keys if ids is None else ids, share) if share else np.zeros(len(known), np.bool_)
    own, rest = known & ~away, known & away
    parts: list[Part] = [_part(texts, y, own)]
    units = None if ids is None else parted(ids, own, rest)
    hashed = config.unit or config.split_by
    split = f"a fixed hash of {'each row' if hashed is None else f'the column {hashed!r}'}, row by row"
    if config.test is not None:
        measured, others = _test_rows(config, goal)
        parts.append(measured)
        units = None if units is None or others is None else [units[0], others]
        split = f"those of {Path(config.test).name}"
    elif share:
        parts.append(_part(texts, y, rest))
    if any(not part[0] for part in parts):
        raise FileError(f"{config.source} has too few rows with a target to train on and to hold out.")
    return _task(
        config,
        Path(config.source).name,
        tuple(parts),
        goal.classes,
        tuple(not_covered_by(goal, {})),
        (f"Held-out rows: {split}.",) if len(parts) > 1 else (),
        kind_is_binary=goal.kind == "binary",
        units=units,
    )


def _part(texts: Sequence[str], y: NDArray[np.generic], mask: NDArray[np.bool_]) -> Part:
    return [text for text, use in zip(texts, mask, strict=True) if use], y[mask]


def _test_rows(config: DataConfig, goal: Target) -> tuple[Part, Ids | None]:
    """The rows of the user's own test file that have a label, and whose they are where rows have owners."""
    assert config.test is not None
    assert config.text is not None
    if Path(config.test).resolve() == Path(config.source).resolve():
        raise ArgumentError("test names the training rows; figures on them would flatter the model.")
    table = read_columns(config.test, separator=config.separator, encoding=config.encoding)
    y, known = encode_target(table, goal)
    if not known.any():
        raise FileError(f"The target {goal.name!r} is missing in every row of {config.test}.")
    owners = None if config.unit is None else parted(table.column(config.unit), known, ~known)[0]
    return _part(table.column(config.text), y, known), owners


def _task(
    config: DataConfig,
    name: str,
    parts: tuple[Part, ...],
    classes: tuple[str, ...],
    not_covered: tuple[str, ...],
    public_sources: tuple[str, ...],
    *,
    kind_is_binary: bool = True,
    units: list[Ids] | None = None,
) -> Task:
    assert config.tokenizer is not None
    tokenizer = load_tokenizer(config.tokenizer)
    length = check_count("length", config.length or LENGTH, least=3)
    pairs: list[TensorDataset] = []
    owners: list[Ids] = []
    for place, (texts, y) in enumerate(parts):
        own = np.arange(len(y)) if units is None else units[place]
        if config.examples is not None and not pairs:
            texts, y, own = texts[: config.examples], y[: config.examples], own[: config.examples]
        ids = ids_of(tokenizer, texts, length)
        order = by_length(ids, int(tokenizer.pad_token_id))
        pairs.append(tensors(ids[order], y[order]))
        owners.append(own[order])
    return Task(
        name=name,
        train=pairs[0],
        held_out=pairs[1] if len(pairs) > 1 else None,
        kind="binary" if kind_is_binary else "multiclass",
        input_shape=(length,),
        classes=classes,
        vocabulary=len(tokenizer),
        not_covered=(
            *not_covered,
            *([HELD_OUT_NOT_COVERED] if len(pairs) > 1 else []),
            COUNT_NOT_COVERED if units is None or config.unit is None else count_words(config.unit),
        ),
        unit="" if units is None or config.unit is None else unit_words(config.unit),
        units=None if units is None else owners[0],
        held_out_units=None if units is None or len(pairs) < 2 else owners[1],
        public_sources=(
            f"Token ids: the public tokenizer in {checkpoint_dir(config.tokenizer).name}, at most {length} of a text.",
            *public_sources,
        ),
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
