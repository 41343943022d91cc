"""The built-in tables: Adult, Bank Marketing and KDD Cup 1999."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data import sources
from tacit.data import tabular_codebook as codebook
from tacit.data.assemble import table_task
from tacit.data.readers import read_gzip
from tacit.data.schema import Schema, Target
from tacit.data.split import held_out_mask
from tacit.data.table import Table, parse_rows, read_columns, row_keys
from tacit.data.task import Task
from tacit.errors import FileError

_HASH_SPLIT = "Held-out rows: a fixed hash of each row's contents, so that equal rows stay together."


def load_adult(data_dir: Path, download: bool) -> Task:
    """Adult (census 1994): does a person earn over 50,000 dollars? The published test part is held out."""
    train, test = (
        _read_adult(sources.find_or_fetch(data_dir, f"{source.file}.gz", source, download=download))
        for source in (sources.ADULT_TRAIN, sources.ADULT_TEST)
    )
    both = replace(
        train,
        columns={name: cells + test.columns[name] for name, cells in train.columns.items()},
        rows=train.rows + test.rows,
    )
    return table_task(
        "adult",
        both,
        Schema(Target("income", "binary", ("<=50K", ">50K")), codebook.ADULT),
        np.arange(both.rows) >= train.rows,
        public_sources=(
            "Categories and ranges: adult.names, published with the data.",
            "Held-out rows: the test part that was published with the data.",
        ),
    )


def _read_adult(path: Path) -> Table:
    """Read adult.data or adult.test; the latter begins with a remark and ends its labels with a full stop."""
    try:
        lines = read_gzip(path).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not the Adult table.") from error
    rows = [line.rstrip().removesuffix(".") for line in lines if not line.startswith("|")]
    return parse_rows(path, rows, ",", [*codebook.ADULT, "income"])


def load_bank(data_dir: Path, download: bool) -> Task:
    """Bank Marketing: does a called customer subscribe? ``duration``, known only after the call, is among the
    features, as in the studies that use this table.
    """
    path = sources.find_or_fetch(data_dir, "tabular/bank-full.csv.gz", sources.BANK, download=download)
    table = read_columns(path, separator=";")
    return table_task(
        "bank",
        table,
        Schema(Target("y", "binary", ("no", "yes")), codebook.BANK),
        held_out_mask(row_keys(table), 0.2),
        public_sources=(
            "Categories: bank-names.txt, published with the data; ranges: round numbers.",
            _HASH_SPLIT,
        ),
    )


def load_kdd99(data_dir: Path, download: bool) -> Task:
    """KDD Cup 1999, 10 percent: is a network connection an attack?"""
    path = sources.find_or_fetch(data_dir, sources.KDD99.file, sources.KDD99, download=download)
    table = read_columns(path, separator=",", names=[*codebook.KDD99, "connection"])
    answers = ["normal" if cell == "normal." else "attack" for cell in table.column("connection")]
    return table_task(
        "kdd99",
        replace(table, columns={**table.columns, "connection": answers}),
        Schema(Target("connection", "binary", ("normal", "attack")), codebook.KDD99),
        held_out_mask(row_keys(table), 0.2),
        public_sources=(
            "Columns: kddcup.names, published with the data; services and flags: the value lists of NSL-KDD; "
            "ranges: round numbers.",
            _HASH_SPLIT,
        ),
    )
