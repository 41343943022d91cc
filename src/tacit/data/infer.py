"""What a table's columns hold, guessed from their values."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data.encode import PARTS
from tacit.data.schema import Category, Column, Date, Number, Scale, Schema, Skip, Target, Text
from tacit.data.table_file import Table, read_columns
from tacit.data.task import Kind
from tacit.data.values import (
    DATE_FORMATS,
    decimal_sign,
    is_missing,
    normal_value,
    parse_date,
    parse_number,
    parse_numbers,
    sentinels,
)
from tacit.errors import ArgumentError, FileError
from tacit.name_lists import listed

MOST_CATEGORIES = 30
MOST_CLASSES = 1000
_MANY = 1000
_LEAST_ROWS_PER_CLASS = 4
_MOST_ODD_WORDS = 5
_LEAST_NUMERIC_SHARE = 0.9
_LEAST_IDS = 20
ID_NAME = re.compile(r"(^|[^a-z])(id|uuid|guid|index|key|nr|nbr|no|number)$|[a-z]I[dD]$|^unnamed")
"""Names of columns that count rows or owners, and measure nothing."""
_SAME_ANSWER = (("yes", "y", "true", "t", "1"), ("no", "n", "false", "f", "0"))
_NO = (
    *("no", "n", "false", "f", "0", "negative", "neg", "-1"),
    *("nein", "non", "nee", "nej", "nei", "não", "nao", "falsch", "faux", "falso", "нет", "否"),
)


def infer_schema(
    path: str | Path,
    target: str,
    *,
    kind: Kind | None = None,
    positive: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    drop: Sequence[str] = (),
) -> Schema:
    """Guess a schema for all columns of a file, for a person to correct and to declare public.

    Every column and the target are marked ``public=False``, because types, ranges and categories were
    read off the rows. ``write_schema`` puts the result into a file. ``encoding`` is that of a text file, where
    it is not found from its bytes; columns in ``drop`` are left out. A comma that may part thousands or decimals is
    taken to part thousands.
    """
    return schema_of(read_columns(path, separator=separator, encoding=encoding), target, kind, positive, drop)


def schema_of(
    table: Table, target: str, kind: Kind | None, positive: str | None, drop: Sequence[str]
) -> Schema:
    """The guess of ``infer_schema`` for a table that was read."""
    for name in drop:
        table.column(name)
    guessed = guess_target(table, target, kind, positive)
    used = [name for name in table.columns if name != target and name not in drop]
    return Schema(guessed, {name: guess_column(table, name, unclear=".") for name in used})


def guess_target(table: Table, name: str, kind: Kind | None, positive: str | None) -> Target:
    """Guess kind and classes (or range) of the target column."""
    cells = table.column(name)
    counts = cells.counts()
    present = [
        cell for cell, count in zip(cells.values, counts, strict=True) if count and not is_missing(cell)
    ]
    values = list(dict.fromkeys(normal_value(cell) for cell in present))
    if not values:
        raise FileError(f"The target {name!r} is missing in every row of {table.path}.")
    if len(values) == 1:
        raise FileError(
            f"The target {name!r} is {present[0]!r} in every row of {table.path}; there is nothing to learn."
        )
    decimal = _decimal(values) or "."
    numbers = [parse_number(value, decimal) for value in values]
    numeric = all(math.isfinite(number) for number in numbers)
    _refuse_two_spellings(table, name, values)
    if kind is None:
        whole = numeric and all(number == round(number) for number in numbers)
        few_rows = sum(counts) < _LEAST_ROWS_PER_CLASS * len(values)
        kind = _kind(table, name, len(values), numeric, amount=numeric and (few_rows or not whole))
    if kind == "regression":
        if not numeric:
            odd = next(v for v, number in zip(values, numbers, strict=True) if not math.isfinite(number))
            raise FileError(
                f"The regression target {name!r} holds {odd!r} in {table.path}, which is no number."
            )
        if decimal != ".":
            raise FileError(
                f"The regression target {name!r} of {table.path} is written with decimal commas, as in {present[0]!r}; "
                "write it with points."
            )
        every = parse_numbers(cells)
        low, high, _ = _round_range(table, name, _without_outliers(every[~np.isnan(every)]))
        return Target(name, "regression", low=low, high=high, public=False)
    if kind == "binary" and len(values) > 2:
        raise ArgumentError(
            f"The target {name!r} has {len(values)} different values ({listed(values, 4)}), not two; use "
            "kind multiclass or regression, or make it yes or no."
        )
    if len(values) > MOST_CLASSES:
        raise ArgumentError(
            f"The target {name!r} has {len(values)} different values, more than {MOST_CLASSES} classes; is "
            "it a number (kind regression) or an identifier?"
        )
    return Target(name, kind, _classes(name, present, values, numeric, positive), public=False)


def _refuse_two_spellings(table: Table, name: str, values: Sequence[str]) -> None:
    """Ask about a target in which one answer is spelled in two ways."""
    if all(any(value in words for words in _SAME_ANSWER) for value in values):
        for words in _SAME_ANSWER:
            found = [value for value in values if value in words]
            if len(found) > 1:
                raise FileError(
                    f"The target {name!r} of {table.path} holds both {found[0]!r} and {found[1]!r}: are they the same "
                    "class? Write every class in one way."
                )


def _kind(table: Table, name: str, distinct: int, numeric: bool, *, amount: bool) -> Kind:
    """The kind of a target; an ``amount`` is a number with fractions, or one that hardly repeats."""
    if distinct == 2:
        return "binary"
    if distinct <= MOST_CATEGORIES and not amount:
        return "multiclass"
    if numeric:
        return "regression"
    raise ArgumentError(
        f"The target {name!r} of {table.path} has {distinct} different values that are no numbers; choose "
        "another target, or say kind multiclass."
    )


def _classes(
    name: str, present: Sequence[str], values: list[str], numeric: bool, positive: str | None
) -> tuple[str, ...]:
    written = {normal_value(cell): cell for cell in reversed(present)}
    ranked = sorted(values, key=parse_number) if numeric else sorted(values)
    if len(ranked) == 2 and ranked[1] in _NO and ranked[0] not in _NO:
        ranked.reverse()
    if positive is not None:
        chosen = normal_value(positive)
        if len(ranked) != 2 or chosen not in ranked:
            raise ArgumentError(
                f"The positive class {positive!r} is not one of two values of the target {name!r}, which has "
                f"{listed(ranked, 4)}."
            )
        ranked.sort(key=lambda value: value == chosen)
    return tuple(written[value] for value in ranked)


def _plain_number(table: Table, name: str, values: NDArray[np.float64], counts: NDArray[np.int64]) -> Number:
    """A column of so many different plain numbers that nothing else needs to be looked for."""
    known = np.isfinite(values) & (counts > 0)
    numbers = _repeated(values[known], counts[known])
    return replace(
        _number(table, name, numbers, (), int(counts[known].sum()) < int(counts.sum())), decimal="."
    )


def _repeated(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each value so many times, in rising order: different values are fewer, and sorted faster, than rows."""
    order = np.argsort(values)
    return np.repeat(values[order], counts[order])


def guess_column(table: Table, name: str, unclear: str | None = None) -> Column:
    """Guess a column: number, date, category, else text; constant columns and row ids are skipped.

    ``unclear`` is the decimal sign of numbers such as 1,234, which do not show it; ``None`` refuses them.
    """
    cells = table.column(name)
    counts = cells.counts()
    named_id = bool(ID_NAME.search(name) or ID_NAME.search(name.lower()))
    if len(cells.values) > _MANY and not named_id and cells.floats is not None:
        return _plain_number(table, name, cells.floats, counts)
    kept = [place for place, cell in enumerate(cells.values) if counts[place] and not is_missing(cell)]
    present = int(counts[kept].sum())
    missing = present < len(cells)
    distinct = {normal_value(cell): cell for cell in reversed([cells.values[place] for place in kept])}
    if len(distinct) < 2:
        return Skip(public=False)
    if named_id and len(distinct) == present and not any("." in cell for cell in distinct):
        return Skip(public=False)
    if (pattern := _date_format(distinct.values())) is not None:
        years = [day.year for cell in distinct.values() if (day := parse_date(cell, pattern))]
        return Date(date(min(years), 1, 1), date(max(years), 12, 31), pattern, missing, public=False)
    decimal = _decimal(distinct.values()) or unclear
    plain = cells.floats if decimal == "." else None
    values = (
        np.array([parse_number(cells.values[place], decimal or ".") for place in kept])
        if plain is None
        else plain[kept]
    )
    is_number = np.isfinite(values)
    odd = list({normal_value(cells.values[p]): cells.values[p] for p in np.array(kept)[~is_number]}.values())
    numeric = int(counts[kept][is_number].sum())
    mostly_numeric = len(odd) <= _MOST_ODD_WORDS and numeric >= _LEAST_NUMERIC_SHARE * present
    if mostly_numeric and values[is_number].min() < values[is_number].max():
        if decimal is None:
            shown = next(cell for cell in distinct.values() if "," in cell)
            raise FileError(
                f"Column {name!r} of {table.path} holds numbers such as {shown!r}: does the comma part thousands or "
                f"decimals? `tacit data schema` writes a schema that takes it to part thousands; if it parts "
                f"decimals, write decimal = ',' for the column there. Then pass the file with --schema."
            )
        numbers = _repeated(values[is_number], counts[kept][is_number])
        guess = _number(table, name, numbers, tuple(sorted(odd)), missing or bool(odd))
        return replace(guess, decimal=decimal)
    if len(distinct) <= MOST_CATEGORIES and 2 * len(distinct) <= present:
        return Category(tuple(sorted(distinct.values(), key=str.casefold)), missing=missing, public=False)
    return Skip(public=False) if len(distinct) == present and _are_ids(distinct) else Text(public=False)


def _are_ids(values: Iterable[str]) -> bool:
    """Whether values that are all different look like ids: many, each one word with a digit in it."""
    shown = list(values)
    return len(shown) >= _LEAST_IDS and all(
        len(cell.split()) == 1 and any(map(str.isdigit, cell)) for cell in shown
    )


def _date_format(values: Iterable[str]) -> str | None:
    """The format in which all values are dates."""
    shown = list(itertools.islice(values, 20))
    for pattern in DATE_FORMATS:
        if all(parse_date(cell, pattern) for cell in shown) and all(parse_date(c, pattern) for c in values):
            return pattern
    return None


def _decimal(values: Iterable[str]) -> str | None:
    """The sign before decimal places, if the values are numbers; ``None`` if they do not show it."""
    telling = [value for value in values if "," in value or value.count(".") > 1]
    return decimal_sign([value for value in telling if any(map(str.isdigit, value))])


def _number(
    table: Table, name: str, numbers: NDArray[np.float64], odd: tuple[str, ...], missing: bool
) -> Number:
    plain = _without_codes(numbers)
    low, high, step = _round_range(table, name, plain)
    middle = min(max(float(np.median(numbers)), low), high)
    typical = float(f"{round(middle / step) * step:.12g}") if step else middle
    typical = min(max(typical, low), high)
    long_tail = plain.min() >= 0 and plain.max() > 20 * middle
    scale: Scale = "log" if long_tail else "linear"
    return Number(low, high, scale, typical, odd, missing, public=False, cuts=quantile_cuts(plain))


def quantile_cuts(numbers: Sequence[float] | NDArray[np.float64], parts: int = PARTS) -> tuple[float, ...]:
    """Where to divide a column so that its parts hold about equally many rows, and the rarest hundredths at both ends.

    A value that fills many rows, such as a zero for "none", counts as one part only, so that the rest is divided too.
    """
    ordered = np.sort(np.asarray(numbers, dtype=np.float64), kind="stable")  # quick where they are in order
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    values, counts = ordered[starts], np.diff(np.append(starts, len(ordered)))
    if len(values) <= parts:
        return tuple(values[1:].tolist())
    weights = counts.astype(np.float64)
    for _ in range(parts):
        weights = np.minimum(counts, weights.sum() / parts)
    shares = np.cumsum(weights) / weights.sum()
    wanted = np.array([0.01, *(np.arange(1, parts) / parts), 0.99])
    places = np.searchsorted(shares, wanted) + 1
    return tuple(np.unique(values[places.clip(1, len(values) - 1)]).tolist())


def _without_codes(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """``numbers`` without codes such as 999, which would leave most of a range empty; they count as its end."""
    codes = sentinels(numbers)
    return numbers[~np.isin(numbers, codes)] if codes else numbers


def _without_outliers(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """``numbers`` without those far beyond the middle 98 %, which would leave a range almost empty."""
    low, high = np.quantile(numbers, [0.01, 0.99])
    reach = 0.25 * (high - low)
    kept = numbers[(low - reach <= numbers) & (numbers <= high + reach)]
    return kept if kept.min() < kept.max() else numbers


def _round_range(
    table: Table, name: str, numbers: Sequence[float] | NDArray[np.float64]
) -> tuple[float, float, float]:
    """Return a round range around ``numbers``, and a tenth of the rounding step (0 if there is none)."""
    low, high = float(np.min(numbers)), float(np.max(numbers))
    span = high - low
    if not math.isfinite(span):
        raise FileError(
            f"Column {name!r} of {table.path} holds numbers as far apart as {low:g} and {high:g}; declare "
            "low and high in a schema."
        )
    if span == 0:
        raise FileError(f"Column {name!r} of {table.path} holds the same number, {low:g}, in every row.")
    step = 10.0 ** math.floor(math.log10(span))
    if not 1e-300 < step < 1e300 or max(abs(low), abs(high)) > 1e12 * step:
        return low, high, 0.0
    # Twelve digits take away the traces of binary fractions; adding 0.0 makes -0.0 plain.
    ends = [float(f"{end * step:.12g}") + 0.0 for end in (math.floor(low / step), math.ceil(high / step))]
    return min(ends[0], low), max(ends[1], high), step / 10
