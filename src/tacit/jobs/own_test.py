"""Test rows of the user's own, in a file beside the training rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tacit.data import Task
from tacit.data.copies import refuse_copies
from tacit.data.encode import bounded, encode, encode_target
from tacit.data.stored_rows import StoredRows
from tacit.data.table_file import read_columns
from tacit.data.table_task import targets_outside, tensors
from tacit.data.task import HELD_OUT_NOT_COVERED
from tacit.data.tolerance import tolerate
from tacit.data.units import parted
from tacit.errors import ArgumentError, FileError
from tacit.jobs.settings import DataConfig
from tacit.name_lists import listed


def with_test(task: Task, config: DataConfig) -> Task:
    """``task`` measured on the rows of the file that ``config.test`` names; all of its own rows are trained on.

    Test rows are read with the schema of the training rows, and never the other way round. What the schema does not
    know counts as missing, as in prediction, and is named in a warning. Rows without a target are left out.
    """
    assert config.test is not None
    schema = task.schema
    if schema is None:
        raise ArgumentError(f"test is for tables; {config.source!r} is none.")
    if Path(config.test).resolve() == Path(config.source).resolve():
        raise ArgumentError("test names the training rows; figures on them would flatter the model.")
    if isinstance(task.train, StoredRows):
        refuse_copies([*task.train.groups.with_rows, config.test])
    table = read_columns(config.test, separator=config.separator, encoding=config.encoding)
    y, known = encode_target(table, schema.target)
    if not known.any():
        raise FileError(f"The target {schema.target.name!r} is missing in every row of {config.test}.")
    found = tolerate(table, schema)
    absent = [report.name for report in found.reports if report.absent]
    if absent:
        raise FileError(f"The test rows in {config.test} lack the columns {listed(absent)}.")
    x = encode(found.table, schema).x
    units = None
    if config.unit is not None:
        units = parted(table.column(config.unit), known, ~known)[0]
    return replace(
        task,
        held_out=tensors(x[known], bounded(y[known], schema.target)),
        held_out_units=units,
        not_covered=(*task.not_covered, HELD_OUT_NOT_COVERED),
        public_sources=(*task.public_sources, f"Held-out rows: those of {Path(config.test).name}."),
        warnings=(
            *task.warnings,
            *targets_outside(y[known], schema.target),
            *(f"Test rows: {report.sentence}" for report in found.reports if report.remarkable),
        ),
    )
