"""A table that was read but not encoded yet: the kinds of its columns are known, its ranges and categories need not be.

The facts that encoding needs come from one of two places. ``task`` without a schema takes what a schema does not
declare from the rows, which ε does not cover. ``Questions`` and ``measured`` take it from noisy counts that were paid
for; then only the kinds of columns (number, date, category, text) come from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tacit.data import measure
from tacit.data.encode import encode_target
from tacit.data.measure import Counted, Floats
from tacit.data.oddities import oddities
from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Target, Text
from tacit.data.table_file import Table
from tacit.data.table_task import check_target, not_covered_by, public_sources, table_task
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Task
from tacit.data.values import is_missing, normal_value, parse_date, parse_numbers

OTHERS = 16
"""How many features the values share that are too rare to be named."""
_TARGET_SHARE = 0.1
"""The least share of a row's weight that goes to the target."""


class Unread(Dataset[tuple[Tensor, ...]]):
    """So many rows that have not been encoded yet."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows


@dataclass(frozen=True)
class Round:
    """What one round of counting released. ``edges`` are those of each number that was counted.

    ``names`` holds noisy counts of the texts of categories; ``classes`` those of the target's classes.
    """

    index: int
    edges: Mapping[str, tuple[float, ...]]
    numbers: Mapping[str, tuple[float, ...]]
    names: Mapping[str, Mapping[str, float]]
    classes: tuple[float, ...]
    deviations: Mapping[str, float]


@dataclass(frozen=True)
class Questions:
    """What a round counts: the bin of every training row in each number (and the number of bins), and its texts.

    ``classes`` is the same for the target's classes, under the target's name. The squares of ``weights`` add up to 1.
    """

    edges: dict[str, Floats]
    binned: dict[str, tuple[NDArray[np.int64], int]]
    named: dict[str, Sequence[str]]
    weights: dict[str, float]


@dataclass(frozen=True)
class OpenTable:
    """A table with a guess of its columns and target, a mask of rows that are held out, and where facts come from.

    Without a mask all rows are trained on.
    """

    name: str
    table: Table
    guess: Schema
    held_out: NDArray[np.bool_] | None
    source: str
    split_source: str
    labels: tuple[NDArray[np.generic], NDArray[np.bool_]] = field(repr=False)
    unit: str | None = None

    @classmethod
    def of(
        cls,
        path: str | Path,
        table: Table,
        guess: Schema,
        held_out: NDArray[np.bool_] | None,
        source: str,
        split_source: str,
        unit: str | None = None,
    ) -> OpenTable:
        """The table with its target read; refused where there is nothing to learn."""
        labels = encode_target(table, guess.target)
        opened = cls(Path(path).name, table, guess, held_out, source, split_source, labels, unit)
        check_target(table, guess.target, labels[0][opened.training], labels[1], opened.held_out)
        return opened

    @cached_property
    def training(self) -> NDArray[np.bool_]:
        """Which rows are trained on: whether one is depends on that row alone."""
        return self.labels[1] if self.held_out is None else self.labels[1] & ~self.held_out

    @property
    def used(self) -> list[str]:
        """The columns that are predicted from."""
        return [name for name, column in self.guess.columns.items() if not isinstance(column, Skip)]

    @property
    def to_measure(self) -> list[str]:
        """The columns that nothing is declared about and whose facts can be measured, the target among them."""
        columns = [name for name, column in self.guess.columns.items() if _open(column)]
        return [*columns, self.guess.target.name] if not self.guess.target.public else columns

    @property
    def numbers(self) -> list[str]:
        """Those of them that are numbers or days."""
        return [name for name in self.to_measure if self._is_number(name)]

    @property
    def rounds(self) -> int:
        """How many rounds measuring takes."""
        return measure.ROUNDS if self.numbers else 1

    @cached_property
    def rows_task(self) -> Task:
        """The task with what is not declared taken from the rows."""
        return self.task(self.guess)

    def task(self, schema: Schema) -> Task:
        """The task, encoded by ``schema``."""
        goal, columns = schema.target, dict(schema.columns)
        made = table_task(
            self.name,
            self.table,
            schema,
            self.held_out,
            not_covered=not_covered_by(goal, columns),
            public_sources=(
                *public_sources(goal, columns, self.source),
                *([] if self.held_out is None else [self.split_source]),
            ),
            labels=self.labels if goal.range_or_classes == self.guess.target.range_or_classes else None,
            unit=self.unit,
        )
        return replace(made, warnings=(*self.oddities, *_beyond_grid(schema), *made.warnings))

    def unread_task(self) -> Task:
        """The task as far as it is known before its facts are: sizes, kind, classes."""
        rest = None if self.held_out is None else Unread(int((self.labels[1] & self.held_out).sum()))
        return Task(
            name=self.name,
            train=Unread(int(self.training.sum())),
            held_out=rest,
            kind=self.guess.target.kind,
            input_shape=(len(self.used),),
            classes=self.guess.target.classes,
            columns=len(self.used),
            warnings=self.oddities,
        )

    @cached_property
    def oddities(self) -> tuple[str, ...]:
        """What looks odd in the rows, for their owner."""
        return oddities(self.table, self.guess, *self.labels, self.unit)

    def questions(self, before: Sequence[Round]) -> Questions:
        """What the next round counts, given what was released before."""
        edges = {name: self._edges(name, before) for name in self.numbers}
        binned = {name: measure.places(self._values(name), edges[name]) for name in self.numbers}
        named: dict[str, Sequence[str]] = {}
        target = self.guess.target
        if not any(entry.names or entry.classes for entry in before):
            named = {
                name: self.table.column(name).chosen(self.training)
                for name in self.to_measure
                if isinstance(self.guess.columns.get(name), Category)
            }
            if target.name in self.to_measure and target.kind != "regression":
                classes = self.labels[0][self.training].reshape(-1).astype(np.int64)
                binned[target.name] = (classes, len(target.classes))
        return Questions(edges, binned, named, self._weights([*binned, *named]))

    def _weights(self, names: list[str]) -> dict[str, float]:
        target = self.guess.target.name
        others = [name for name in names if name != target]
        share = 0.0
        if target in names:
            share = max(1 / len(names), _TARGET_SHARE) if others else 1.0
        weights = {name: float(np.sqrt((1 - share) / len(others))) for name in others}
        return {**weights, **({target: float(np.sqrt(share))} if target in names else {})}

    def _is_number(self, name: str) -> bool:
        if name == self.guess.target.name:
            return self.guess.target.kind == "regression"
        return isinstance(self.guess.columns[name], Number | Date)

    def _values(self, name: str) -> Floats:
        """The numbers, or days, of a column's training rows; missing is not a number."""
        cells = self.table.column(name)
        column = self.guess.columns.get(name)
        if isinstance(column, Date):
            days = [parse_date(cell, column.format) for cell in cells.values]
            every = np.array([np.nan if day is None else float(day.toordinal()) for day in days])[cells.codes]
        elif isinstance(column, Number):
            every = parse_numbers(cells, column.missing_values, column.decimal)
        else:
            every = parse_numbers(cells)
        return every[self.training]

    def _edges(self, name: str, before: Sequence[Round]) -> Floats:
        seen = _last(name, before)
        return measure.GRID if seen is None else measure.refined(seen, int(self.training.sum()))

    def measured_not_covered(self) -> tuple[str, ...]:
        """What ε does not cover once the columns are measured: known before, and the same whatever is measured."""
        columns = {name: _as_measured(column) for name, column in self.guess.columns.items()}
        goal = self.guess.target
        if not goal.public:
            goal = replace(goal, measured=True, public=goal.kind == "regression")
        held_out = [] if self.held_out is None else [HELD_OUT_NOT_COVERED]
        return (*not_covered_by(goal, columns), *held_out, COUNT_NOT_COVERED)

    def measured(self, rounds: Sequence[Round]) -> Schema:
        """The schema that follows from what was released, and from what was declared."""
        columns = {
            name: self._measured(name, column, rounds) if not column.public else column
            for name, column in self.guess.columns.items()
        }
        target = self.guess.target
        if not target.public:
            target = self._measured_target(target, rounds)
        return Schema(target, columns)

    def _measured(self, name: str, column: Column, rounds: Sequence[Round]) -> Column:
        rows = int(self.training.sum())
        seen = _last(name, rounds)
        match column:
            case Number() if seen is not None:
                facts = measure.number_facts(seen, rows)
                return Number(
                    facts.low,
                    facts.high,
                    "log" if facts.low >= 0 and facts.high > 20 * facts.typical else "linear",
                    facts.typical,
                    column.missing_values,
                    facts.missing,
                    decimal=column.decimal,
                    cuts=facts.cuts,
                    measured=True,
                )
            case Number():  # a flag
                return replace(column, missing=False, public=True, measured=True)
            case Date() if seen is not None:
                facts = measure.number_facts(seen, rows)
                ends = [min(max(round(end), 1), date.max.toordinal() - 1) for end in (facts.low, facts.high)]
                low, high = date.fromordinal(ends[0]), date.fromordinal(max(ends[1], ends[0] + 1))
                return Date(low, high, column.format, facts.missing, measured=True)
            case Category():
                found = next((entry.names[name] for entry in rounds if name in entry.names), {})
                named = {text: count for text, count in found.items() if not is_missing(text)}
                names = measure.category_names(named, {text: normal_value(text) for text in named})
                return Category(names, missing=len(named) < len(found), others=OTHERS, measured=True)
        return column

    def _measured_target(self, target: Target, rounds: Sequence[Round]) -> Target:
        if target.kind != "regression":
            entry = next(entry for entry in rounds if entry.classes)
            shares = measure.class_shares(entry.classes, entry.deviations[target.name])
            return replace(target, shares=shares, measured=True)
        seen = _last(target.name, rounds)
        assert seen is not None
        facts = measure.number_facts(seen, int(self.training.sum()))
        return replace(
            target, low=facts.low, high=facts.high, typical=facts.typical, public=True, measured=True
        )


def _beyond_grid(schema: Schema) -> list[str]:
    """Sentences on measured columns whose numbers lie beyond what measuring tells apart."""
    end = float(measure.GRID[-1])
    return [
        f"Column {name!r} holds numbers beyond {end:.3g}, which measuring does not tell apart: declare low and high in "
        "a schema, or leave the column out."
        for name, column in schema.columns.items()
        if isinstance(column, Number) and column.measured and max(-column.low, column.high) >= end
    ]


def _as_measured(column: Column) -> Column:
    return (
        column
        if column.public or isinstance(column, Skip | Text)
        else replace(column, public=True, measured=True)
    )


def _open(column: Column) -> bool:
    """Whether there is something to measure; a flag, which is 0 or 1, has no range to find."""
    if column.public or isinstance(column, Skip | Text):
        return False
    return not (isinstance(column, Number) and (column.low, column.high, column.cuts) == (0, 1, (1,)))


def _last(name: str, rounds: Sequence[Round]) -> Counted | None:
    """The counts of the last round in which a number was counted."""
    for entry in reversed(rounds):
        if name in entry.numbers:
            return measure.counted(
                np.array(entry.edges[name]), list(entry.numbers[name]), entry.deviations[name]
            )
    return None
