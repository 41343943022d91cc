"""From the description of data to the data: built-in sets, files, folders and objects of the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from tacit.data import LOADERS, Schema, Task, load, resolve
from tacit.data.open_table import OpenTable, Unread
from tacit.data.read_table import open_table
from tacit.data.row_groups import parquet_files
from tacit.data.sparse_rows import SparseRows
from tacit.data.table_file import Table, read_columns
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, KINDS, Kind, held_out_mask
from tacit.errors import ArgumentError, FileError, check_count
from tacit.jobs.settings import DataConfig

IMAGE_SIZE = 32
"""Side of images where nothing else was said."""

IN_MEMORY = "rows in memory"
"""The source of a run whose rows were handed over in memory."""


@dataclass(frozen=True)
class Problem:
    """What a run needs to know about its data.

    ``task`` is there unless the user brought a bare dataset; ``schema`` where the data is a table of the
    user's, with everything resolved, so that the same file is read in the same way again. ``table`` is one whose
    columns may still be measured: its rows have not been encoded yet. ``tested`` describes a table that is measured on
    rows of another file. ``images`` are there where features are still to be computed of them; until then zeros stand
    for the vectors.
    """

    name: str
    train: Dataset[Any]
    held_out: Dataset[Any] | None
    kind: Kind
    not_covered: tuple[str, ...]
    task: Task | None = None
    schema: Schema | None = None
    table: OpenTable | None = None
    tested: DataConfig | None = None
    images: Task | None = None

    @property
    def units(self) -> NDArray[np.int64] | None:
        """A number per training example, equal for those of one unit of privacy, where a unit has several."""
        return None if self.task is None else self.task.units

    @property
    def examples(self) -> int:
        """The number of training examples; where a unit of privacy is a group of them, the number of units."""
        if self.units is not None:
            return len(np.unique(self.units))
        return len(self.train)  # type: ignore[arg-type]

    def on_features(self, config: DataConfig) -> Problem:
        """The problem with its features computed, where they are not yet."""
        return self if self.images is None else _of_task(_prepared(self.images, config))

    def encoded(self, schema: Schema | None = None) -> Problem:
        """A table's problem with its rows encoded, by ``schema`` or by what the rows themselves show."""
        if self.table is None:
            return self
        task = self.table.rows_task if schema is None else self.table.task(schema)
        if self.tested is not None:
            from tacit.jobs.own_test import with_test

            task = with_test(task, self.tested)
        return _of_task(task)


def load_problem(
    config: DataConfig,
    schema: Schema | None = None,
    table: Table | Task | None = None,
    *,
    leave_open: bool = False,
    features_later: bool = False,
) -> Problem:
    """Load the data that ``config`` describes.

    ``schema`` overrides its schema file; ``table`` holds the rows where they come from memory and not from a source, or
    is a whole task. With ``leave_open`` a table about which something could be measured is not encoded yet; with
    ``features_later`` the features of images are not computed yet.
    """
    if isinstance(table, Task):
        return _of_task(table)
    if table is not None:
        return _of_table(config, schema, table, leave_open=leave_open)
    if config.source == IN_MEMORY:
        raise ArgumentError(
            "This run was trained on rows in memory, which no file keeps; they cannot be loaded again."
        )
    source = Path(config.source)
    if not config.source:
        raise ArgumentError(
            f"Name the data: a file, an image folder, module:object, or one of {', '.join(LOADERS)}."
        )
    if config.task == "generate":
        from tacit.jobs.language import language_task  # transformers takes seconds to load

        return _of_task(language_task(config))
    if config.tokenizer is not None:
        from tacit.jobs.texts import text_task  # transformers takes seconds to load

        return _of_task(_prepared(text_task(config), config))
    if config.text is not None:
        from tacit.jobs.bags import bags_task  # tables do not need it

        return _of_task(bags_task(config))
    for name in ("buckets", "pairs", "words", "length"):
        if getattr(config, name):
            raise ArgumentError(f"{name} is for texts; name their column with --text.")
    if config.source in LOADERS:
        _refuse_table_options(config)
        _refuse_fold(config)
        _refuse_unit(config)
        built_in = _first(load(config.source, config.data_dir), config.examples)
        return _of_prepared(built_in, config, later=features_later)
    if source.is_dir() and parquet_files(source):
        return _of_task(_folder_task(config, schema))
    if source.is_dir():
        from tacit.data.images import read_images  # tables do not need it

        _refuse_table_options(config)
        images = read_images(
            source,
            size=config.image_size or IMAGE_SIZE,
            grey=config.grey,
            held_out=config.held_out_part,
            unit=config.unit,
        )
        return _of_prepared(images, config, later=features_later)
    if source.is_file():
        _refuse_preparation(config)
        return _of_table(config, schema, config.source, leave_open=leave_open)
    if ":" in config.source:
        return _of_object(config, later=features_later)
    raise FileError(
        f"There is no file, folder or data set {config.source!r}; built-in data sets are "
        f"{', '.join(LOADERS)}."
    )


def _first(task: Task, examples: int | None) -> Task:
    """The task with its first ``examples`` training examples only."""
    if examples is None:
        return task
    check_count("examples", examples, least=2)
    parts = task.train.tensors  # type: ignore[attr-defined]
    units = None if task.units is None else task.units[:examples]
    return replace(task, train=TensorDataset(*(part[:examples] for part in parts)), units=units)


def _of_prepared(images: Task, config: DataConfig, *, later: bool) -> Problem:
    """The problem of what ``_prepared`` gives; ``later`` leaves out features whose shape is known beforehand."""
    if not later or config.features is None or not isinstance(images.train, TensorDataset):
        return _of_task(_prepared(images, config))
    from tacit.data.features import before_features  # only images need it

    before = before_features(images, config.features)
    if before is None:
        return _of_task(_prepared(images, config))
    return replace(_of_task(_prepared(images, config, before)), images=images)


def _prepared(task: Task, config: DataConfig, on_features: Task | None = None) -> Task:
    """``task`` on features and with a part of its training examples to measure on, where that was asked for."""
    chosen = _chosen_for_validation(task, config.validation)
    if config.features is not None:
        if not isinstance(task.train, TensorDataset):
            raise ArgumentError(
                f"Features are made of images in memory; those of {task.name!r} stay in their files."
            )
        from tacit.data import features  # only images need them

        task = on_features or features.on_features(task, config.features)
    if chosen is None:
        return task
    parts = task.train.tensors  # type: ignore[attr-defined]
    return replace(
        task,
        train=TensorDataset(*(part[~chosen] for part in parts)),
        held_out=TensorDataset(*(part[chosen] for part in parts)),
        units=None if task.units is None else task.units[~chosen.numpy()],
        held_out_units=None if task.units is None else task.units[chosen.numpy()],
    )


def _chosen_for_validation(task: Task, share: float | None) -> Tensor | None:
    """Which training examples to measure on: a fixed function of each example, so that copies stay together.

    Where a unit is a group of examples, a fixed function of the first of them, so that they stay together.
    """
    if share is None:
        return None
    if not isinstance(task.train, TensorDataset):
        raise ArgumentError(f"A validation part is taken from data held in memory; {task.name!r} is not.")
    rows = task.train.tensors[0].numpy()
    if task.units is not None:
        _, first, codes = np.unique(task.units, return_index=True, return_inverse=True)
        rows = rows[first[codes]]
    # The prefix makes it another function than the one that may have chosen the held-out examples.
    keys = (f"validation {hashlib.sha256(row.tobytes()).hexdigest()}" for row in rows)
    return torch.from_numpy(held_out_mask(keys, share))


def _folder_task(config: DataConfig, schema: Schema | None) -> Task:
    """Rows that stay in the Parquet files of a folder."""
    from tacit.data.stored_folder import read_folder  # tables in one file do not need it

    declared = schema or config.schema
    if declared is None:
        raise ArgumentError(
            f"{config.source} is a folder of Parquet files, whose rows nobody looks through before training; declare "
            "the columns to use in a --schema."
        )
    for name in ("unit", "split_by", "statistics", "kind", "positive", "features", "validation", "separator"):
        if getattr(config, name) is not None:
            raise ArgumentError(
                f"{name} needs all rows in memory, and those of the folder {config.source} stay in their files; leave "
                "it out, or train on one file."
            )
    task = read_folder(
        config.source,
        config.target,
        schema=declared,
        drop=config.drop,
        held_out=config.held_out_part if config.test is None else 0.0,
    )
    if config.test is None:
        return task
    from tacit.jobs.own_test import with_test

    return with_test(task, config)


def _of_task(task: Task) -> Problem:
    return Problem(task.name, task.train, task.held_out, task.kind, task.not_covered, task, task.schema)


def _of_table(config: DataConfig, schema: Schema | None, rows: str | Table, *, leave_open: bool) -> Problem:
    if config.unit is not None and config.statistics == "private":
        raise ArgumentError(
            "statistics private measures columns for units of one row; with --unit, declare ranges and categories in a "
            "schema, or take them from the rows."
        )
    declared = {
        "target": config.target,
        "schema": config.schema,
        "kind": config.kind,
        "positive": config.positive,
    }
    if isinstance(rows, str):
        rows = read_columns(rows, separator=config.separator, encoding=config.encoding)
    table = open_table(
        rows,
        **(declared if schema is None else {"schema": schema}),
        drop=config.drop,
        held_out=config.held_out_part if config.test is None else 0.0,
        split_by=config.split_by,
        unit=config.unit,
    )
    problem = replace(_of_task(table.unread_task()), table=table)
    if config.test is not None:
        problem = replace(problem, tested=config, held_out=Unread(1))
    leave_open = leave_open and config.unit is None and bool(table.to_measure)
    if leave_open and config.test is None:
        return problem
    encoded = (
        problem.encoded()
    )  # reads the rows to measure on: what is wrong with them is said before ε is spent
    return problem if leave_open else encoded


def _of_object(config: DataConfig, *, later: bool) -> Problem:
    """A ``Task``, a dataset, or a pair (training data, held-out data), or a function that returns one."""
    _refuse_unit(config)
    _refuse_fold(config)
    found = resolve(config.source)
    if callable(found) and not isinstance(found, Task | Dataset):
        try:
            found = found()
        except Exception as error:
            raise ArgumentError(
                f"Calling {config.source!r} failed: {type(error).__name__}: {error}."
            ) from error
    if isinstance(found, Task):
        _check_ids(found)
        return _of_prepared(_first(found, config.examples), config, later=later)
    _refuse_preparation(config)
    train, held_out = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(train, Dataset) or not isinstance(held_out, Dataset | None):
        raise ArgumentError(
            f"{config.source!r} gives a {type(found).__name__}; it must give a tacit.data.Task, a torch "
            "Dataset, or a pair of datasets (training, held out)."
        )
    if config.kind is None:
        raise ArgumentError(f"Say --kind for the dataset {config.source!r}: {', '.join(KINDS)}.")
    not_covered = (COUNT_NOT_COVERED, *([HELD_OUT_NOT_COVERED] if held_out is not None else []))
    return Problem(config.source, train, held_out, config.kind, not_covered)


def _check_ids(task: Task) -> None:
    """Refuse token ids that no table of the task's vocabulary has, before one is met in the middle of training."""
    for part in (task.train, task.held_out):
        if isinstance(part, SparseRows) and task.vocabulary != part.columns + 1:
            raise ArgumentError(
                f"{task.name!r} has sparse rows of {part.columns:,} columns; its vocabulary is one more, "
                f"{part.columns + 1:,}, for the number that fills up."
            )
        if task.vocabulary is None or not isinstance(part, TensorDataset) or not part.tensors[0].numel():
            continue
        ids = part.tensors[0]
        if not 0 <= int(ids.min()) <= int(ids.max()) < task.vocabulary:
            raise ArgumentError(
                f"{task.name!r} says that its token ids are 0 to {task.vocabulary - 1:,}, but holds others; check the "
                "ids, or state a larger vocabulary."
            )


def _refuse_preparation(config: DataConfig) -> None:
    if config.features is not None or config.validation is not None:
        raise ArgumentError(
            "features and validation are for built-in data sets, image folders and a tacit.data.Task of your own; "
            f"{config.source!r} is none."
        )


def _refuse_unit(config: DataConfig) -> None:
    if config.unit is not None:
        raise ArgumentError(
            f"unit is for tables, texts and image folders; {config.source!r} is none. A tacit.data.Task of your own "
            "states its units itself."
        )


def _refuse_fold(config: DataConfig) -> None:
    if config.fold is not None:
        raise ArgumentError(
            f"fold is for tables, texts and image folders; {config.source!r} says itself what to measure on."
        )


def _refuse_table_options(config: DataConfig) -> None:
    given = {
        "target": config.target,
        "schema": config.schema,
        "positive": config.positive,
        "drop": config.drop or None,
        "split_by": config.split_by,
        "separator": config.separator,
        "encoding": config.encoding,
        "test": config.test,
        "kind": config.kind,
        "statistics": config.statistics,
    }
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"{name} is for CSV and Parquet files; {config.source!r} is none.")
