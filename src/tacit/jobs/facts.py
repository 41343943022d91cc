"""What a job has understood of its data, in sentences: kind, positive class, unit, columns, and what was guessed."""

from __future__ import annotations

from math import isfinite

import numpy as np

from tacit.data.schema import Category, Date, Number, Skip, Text
from tacit.data.values import parse_number
from tacit.jobs.problem import Problem
from tacit.name_lists import columns

_KINDS = (
    ("Numbers", Number),
    ("Categories", Category),
    ("Dates", Date),
    ("Free text", Text),
    ("Left out", Skip),
)


def facts_of(problem: Problem) -> list[str]:
    """Sentences for whoever starts a run, to be read before ε is spent."""
    opened, task = problem.table, problem.task
    schema = problem.schema if opened is None else opened.guess
    guessed = " (guessed from the rows)" if schema is not None and not schema.target.public else ""
    about = f"Kind: {problem.kind}{guessed}."
    if task is not None and problem.kind == "binary":
        about += f" The positive class is {task.classes[1]!r}, the other {task.classes[0]!r}."
    elif task is not None and problem.kind == "multiclass":
        about += f" {len(task.classes)} classes: {columns(task.classes)}."
        if guessed and all(map(isfinite, map(parse_number, task.classes))):
            about += " If these are amounts or counts and not names, say --kind regression."
    elif schema is not None and problem.kind == "regression":
        low, high = schema.target.range
        about += f" Values from {low:g} to {high:g}; what lies outside counts as the nearer end."
    sentences = [about, f"{problem.examples:,} {_counted(problem)} to train on{_held_out(problem)}."]
    if problem.images is not None:
        sentences.append("Features are computed when the run starts; the first time that takes minutes.")
    if schema is None:
        return sentences
    for words, kind in _KINDS:
        names = [name for name, column in schema.columns.items() if isinstance(column, kind)]
        if names:
            sentences.append(f"{words}: {columns(names)}.")
    if opened is not None and opened.to_measure:
        sentences.append(f"Measured with noise, within ε, when the run starts: {columns(opened.to_measure)}.")
        return sentences
    unsure = [name for name, column in schema.columns.items() if not column.public]
    if unsure:
        sentences.append(f"Guessed from the rows, and not covered by ε: {columns(unsure)}.")
    return sentences


def _counted(problem: Problem) -> str:
    if problem.units is None:
        return "examples"
    assert problem.task is not None
    return "files" if problem.task.unit.startswith("one file") else "units"


def _held_out(problem: Problem) -> str:
    if problem.tested is not None:
        return f", measured on those of {problem.tested.test}"
    if problem.held_out is None:
        return ""
    units = None if problem.task is None else problem.task.held_out_units
    # In the same words: units held out beside units to train on, not their rows.
    count = len(problem.held_out) if units is None or problem.units is None else len(np.unique(units))  # type: ignore[arg-type]
    return f", {count:,} held out"
