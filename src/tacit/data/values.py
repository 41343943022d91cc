"""How single cells are read: missing values, numbers, dates, words."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "?", "-", ".", "na", "n/a", "nan", "null", "<na>", "nat"})
# One rule decides between day-first and month-first: a slash is month-first unless a value forbids it.
DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d-%m-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d-%b-%Y",
)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(?:,(\d+))?")
_TIME_OF_DAY = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?$")


def normal_value(text: str) -> str:
    """Return the form in which category values are compared: ``1.0`` is ``1``, ``Yes`` is ``yes``."""
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text.strip()).casefold()


def is_missing(cell: str) -> bool:
    """Whether ``cell`` is one of the usual spellings of "no value"."""
    return cell.lower() in MISSING


def cell_text(value: object) -> str:
    """The text of a cell that came as a Python value, as a CSV file would have it."""
    match value:
        case str():
            return value.strip()
        case None:
            return ""
        case bool() | np.bool_():
            return "true" if value else "false"
        case datetime():
            # A missing time of pandas is a datetime too, and prints as NaT.
            return str(value).removesuffix(" 00:00:00")
        case float():
            return repr(float(value))
    return str(value).strip()


def parse_number(cell: str) -> float:
    """Return the number in ``cell``, or NaN if there is none."""
    try:
        return float(cell)
    except ValueError:
        return np.nan


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Whether all cells are numbers if a comma is the decimal sign, and some comma cannot part thousands."""
    matches = [_DECIMAL_COMMA.fullmatch(cell) for cell in cells]
    return all(matches) and any(m[1] is not None and len(m[1]) != 3 for m in matches if m)


def parse_numbers(
    cells: Sequence[str], missing_values: Iterable[str] = (), decimal: str = "."
) -> NDArray[np.float64]:
    """Return the numbers in ``cells``; missing is NaN. Raises ``ValueError`` naming the first other
    cell's index.
    """
    codes = frozenset(map(normal_value, missing_values))
    if not codes and decimal == ".":
        # Most columns hold numbers only; then Python's own conversion is all there is to do.
        with contextlib.suppress(ValueError):
            plain = np.fromiter(map(float, cells), np.float64, len(cells))
            if np.isfinite(plain).all():
                return plain
    known: dict[str, float] = {}
    out = np.empty(len(cells))
    for i, cell in enumerate(cells):
        value = known.get(cell)
        if value is None:
            if is_missing(cell) or (codes and normal_value(cell) in codes):
                value = np.nan
            else:
                value = parse_number(cell.replace(decimal, "."))
                if not np.isfinite(value):
                    raise ValueError(i)
            known[cell] = value
        out[i] = value
    return out


@lru_cache(maxsize=1 << 16)
def parse_date(cell: str, pattern: str) -> date | None:
    """Return the day in ``cell`` by a ``strptime`` pattern, with or without a time of day behind it."""
    try:
        return datetime.strptime(_TIME_OF_DAY.sub("", cell), pattern).date()
    except ValueError:
        return None


def words(text: str) -> list[str]:
    """Split text into lower-case words and single other marks."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


@lru_cache(maxsize=1 << 16)
def word_hash(word: str) -> int:
    """A fixed, public 64-bit hash of a word."""
    raw = word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, person=b"tacit-words").digest(), "big")
