"""Texts with labels, as they stand in a user's table: which rows are trained on, which are held out, whose they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from tacit.data.encode import encode_target
from tacit.data.infer import guess_target
from tacit.data.oddities import rare_classes, shared_owners, without_answer
from tacit.data.schema import Target
from tacit.data.table_file import Table, read_columns, row_keys
from tacit.data.table_task import check_target, not_covered_by, tensors
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Task, held_out_mask
from tacit.data.units import Ids, count_words, parted, unit_column, unit_words
from tacit.errors import ArgumentError, FileError
from tacit.jobs.settings import DataConfig

Part = tuple[list[str], NDArray[np.generic]]

FIRST_NOT_COVERED = (
    "Which rows are the first ones, to which training was limited: a row of the file that is added or removed before "
    "them moves another row out or in, so that two examples of the training data change, not one."
)


@dataclass(frozen=True)
class TextRows:
    """Texts and labels to train on and, as a second part, to measure on; with the public facts beside them.

    ``units`` are numbers for each part, equal for the texts of one unit of privacy, where a unit has several.
    ``warnings`` are sentences on what looks odd in the rows.
    """

    name: str
    parts: tuple[Part, ...]
    classes: tuple[str, ...]
    binary: bool
    not_covered: tuple[str, ...]
    public_sources: tuple[str, ...]
    units: list[Ids] | None = None
    warnings: tuple[str, ...] = ()

    def task(
        self,
        config: DataConfig,
        encode: Callable[[Sequence[str]], NDArray[np.generic]],
        source: str,
        *,
        order: Callable[[Any], NDArray[np.int64]] | None = None,
        **facts: Any,
    ) -> Task:
        """The task of predicting the labels. ``encode`` turns texts into rows of ids, as ``source`` says in words.

        ``order`` puts the rows in another order: Poisson sampling looks at each row alone, so no release depends on it.
        """
        pairs: list[TensorDataset] = []
        owners: list[Ids] = []
        for place, (texts, y) in enumerate(self.parts):
            own = np.arange(len(y)) if self.units is None else self.units[place]
            if config.examples is not None and not pairs:
                texts, y, own = texts[: config.examples], y[: config.examples], own[: config.examples]
            ids = encode(texts)
            chosen = slice(None) if order is None else order(ids)
            pairs.append(tensors(ids[chosen], y[chosen]))
            owners.append(own[chosen])
        units = self.units if config.unit is not None else None
        return Task(
            name=self.name,
            train=pairs[0],
            held_out=pairs[1] if len(pairs) > 1 else None,
            kind="binary" if self.binary else "multiclass",
            input_shape=tuple(pairs[0].tensors[0].shape[1:]),
            classes=self.classes,
            not_covered=(
                *self.not_covered,
                *([FIRST_NOT_COVERED] if config.examples is not None else []),
                *([HELD_OUT_NOT_COVERED] if len(pairs) > 1 else []),
                COUNT_NOT_COVERED if units is None else count_words(config.unit or ""),
            ),
            unit="" if units is None else unit_words(config.unit or ""),
            units=None if units is None else owners[0],
            held_out_units=None if units is None or len(pairs) < 2 else owners[1],
            public_sources=(source, *self.public_sources),
            warnings=self.warnings,
            **facts,
        )


def text_rows(config: DataConfig) -> TextRows:
    """The texts of the table that ``config`` names, each with its label; rows without one are left out."""
    table = read_columns(config.source, separator=config.separator, encoding=config.encoding)
    if config.text is None or config.target is None:
        raise ArgumentError(
            f"Say --text and --target: which column of {config.source} holds the texts, which the labels?"
        )
    texts = table.column(config.text)
    for name, column in (("target", config.target), ("unit", config.unit)):
        if column == config.text:
            raise ArgumentError(f"text and {name} are the same column, {column!r}; name two different ones.")
    goal = guess_target(table, config.target, config.kind, config.positive)
    if goal.kind == "regression":
        raise ArgumentError(
            f"The target {goal.name!r} is a number; from texts, classes are learned. Say --kind multiclass if its "
            "values are classes."
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
        few = (
            "rows with a target"
            if hashed is None
            else f"different values of {hashed!r}, whose rows stay together,"
        )
        hint = "; --held-out 0 trains on all rows" if share and known.any() else ""
        raise FileError(f"{config.source} has too few {few} to train on and to hold out{hint}.")
    check_target(table, goal, y[own], known, away if share else None)
    return TextRows(
        Path(config.source).name,
        tuple(parts),
        goal.classes,
        goal.kind == "binary",
        tuple(not_covered_by(goal, {})),
        (f"Held-out rows: {split}.",) if len(parts) > 1 else (),
        units,
        (
            *without_answer(goal, known),
            *rare_classes(goal, y[known]),
            *(shared_owners(table, _others(table, config)) if ids is None else ()),
        ),
    )


def _others(table: Table, config: DataConfig) -> list[str]:
    """The columns that hold neither the texts nor the labels."""
    return [name for name in table.columns if name not in (config.text, config.target)]


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
