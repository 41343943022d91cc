"""The cells of a column, each different text kept once, and how they are read: as numbers, dates, words, or missing."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import cached_property, lru_cache
from math import isfinite
from typing import overload

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
_MONEY = "[$€£¥]|USD|EUR|GBP|CHF"
_MONEY_WITH_POINTS = re.compile("[$£¥]|USD|GBP")
"""Money of countries that write decimals behind a point."""
_GROUP_SIGNS = re.compile(r"[,.'\u2019\s]")


class Cells(Sequence[str]):
    """The cells of one column: ``values`` are the different texts, ``codes`` says which of them each row has.

    It reads like a list of texts. What is done once per different text (parsing, looking up) costs little for a column
    of a few categories.
    """

    def __init__(self, values: list[str], codes: NDArray[np.int64]) -> None:
        self.values, self.codes = values, codes

    @classmethod
    def of(cls, texts: Iterable[str]) -> Cells:
        """The cells that a list of texts holds."""
        if isinstance(texts, Cells):
            return texts
        places: dict[str, int] = {}
        codes = [places.setdefault(text, len(places)) for text in texts]
        return cls(list(places), np.array(codes, dtype=np.int64))

    def mapped(self, change: Callable[[str], str]) -> Cells:
        """The cells with every text changed."""
        changed = Cells.of(map(change, self.values))
        return Cells(changed.values, changed.codes[self.codes])

    @cached_property
    def floats(self) -> NDArray[np.float64] | None:
        """The values as plain numbers, an empty one as not a number; ``None`` if one is no plain number."""
        texts = [value or "nan" for value in self.values]
        # NumPy drops a NUL at the end of a text: what a cell means would depend on the cells beside it.
        if any(sign in " ".join(texts) for sign in "_\0"):
            return None
        try:
            found = np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
        except ValueError:
            return None
        # Of the texts that Python reads as no number only "nan" is a usual word for a missing value.
        unusual = any(texts[place].lower() != "nan" for place in np.flatnonzero(np.isnan(found)))
        return None if unusual or np.isinf(found).any() else found

    def counts(self) -> NDArray[np.int64]:
        """How many rows have each of the values."""
        return np.bincount(self.codes, minlength=len(self.values))

    def chosen(self, rows: NDArray[np.bool_]) -> Cells:
        """The cells of some rows; every value is one that they hold."""
        kept, codes = np.unique(self.codes[rows], return_inverse=True)
        return Cells([self.values[place] for place in kept.tolist()], codes.astype(np.int64))

    def first(self, place: int) -> int:
        """The first row that has the value number ``place``."""
        return int(np.argmax(self.codes == place))

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> Cells: ...

    def __getitem__(self, row: int | slice) -> str | Cells:
        if isinstance(row, slice):
            return Cells(self.values, self.codes[row])
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return map(self.values.__getitem__, self.codes.tolist())

    def __len__(self) -> int:
        return len(self.codes)

    def __add__(self, other: Iterable[str]) -> Cells:
        return Cells.of([*self, *other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Cells({list(self[:5])}{'...' if len(self) > 5 else ''})"


def _written(decimal: str, groups: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<open>\()?(?P<sign>[+\-\u2212])?\s*(?:(?:{_MONEY})\s*(?P<sign_behind_money>[+\-\u2212])?)?"
        rf"(?P<whole>[1-9]\d{{0,2}}(?:{groups}\d{{3}})+|\d*)"
        rf"(?:{re.escape(decimal)}(?P<part>\d*))?(?P<power>[eE][+-]?\d{{1,3}})?\s*(?:%|{_MONEY})?(?P<close>\))?"
    )


_WRITTEN = {".": _written(".", r"[,'\u2019\s]"), ",": _written(",", r"[.'\u2019\s]")}
_TIME_OF_DAY = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?$")


def composed(text: str) -> str:
    """The text with every accented letter as one character; files from some systems hold two, which look the same."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def normal_value(text: str) -> str:
    """Return the form in which category values are compared: ``1.0`` is ``1``, ``Yes`` is ``yes``."""
    text = composed(text.strip())
    if text.endswith("0") and "." in text:
        text = re.sub(r"^([+-]?\d+)\.0+$", r"\1", text)
    return text.casefold()


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


def parse_number(cell: str, decimal: str = ".") -> float:
    """Return the number in ``cell``, or NaN if there is none.

    Signs of money and per cent, and signs between groups of three digits, are left out; brackets mean minus.
    """
    try:
        return float(cell) if decimal == "." and "_" not in cell else _written_number(cell, decimal)
    except ValueError:
        return _written_number(cell, decimal)


def _written_number(cell: str, decimal: str) -> float:
    found = _WRITTEN[decimal].fullmatch(cell)
    if found is None or (found["open"] is None) != (found["close"] is None):
        return np.nan
    digits = _GROUP_SIGNS.sub("", found["whole"] or "") + "." + (found["part"] or "")
    if digits == ".":
        return np.nan
    minus = (found["sign"] or found["sign_behind_money"] or "") in ("-", "\u2212")
    value = float(digits + (found["power"] or ""))
    return -value if minus != (found["open"] is not None) else value


def decimal_sign(values: Iterable[str]) -> str | None:
    """The sign before decimal places in these numbers, "." or ","; ``None`` if they do not show it.

    They do not show it where every comma stands before exactly three digits, as in 1,234: that is one thousand and
    more, or one and a bit. A sign of money may tell: $1,234.
    """
    shown = [value for value in values if "," in value]
    if not shown:
        return "," if any(value.count(".") > 1 for value in values) else "."
    if any(math.isnan(parse_number(value, ".")) for value in shown):
        return ","
    if any(math.isnan(parse_number(value, ",")) for value in shown):
        return "."
    return "." if any(map(_MONEY_WITH_POINTS.search, shown)) else None


def parse_numbers(
    cells: Sequence[str], missing_values: Iterable[str] = (), decimal: str = "."
) -> NDArray[np.float64]:
    """Return the numbers in ``cells``; missing is NaN. Raises ``ValueError`` naming the first other
    cell's index.
    """
    codes = frozenset(map(normal_value, missing_values))
    cells = Cells.of(cells)
    if decimal == "." and not codes and cells.floats is not None:
        return cells.floats[cells.codes]
    known = np.empty(len(cells.values))
    odd = []
    for place, cell in enumerate(cells.values):
        value = parse_number(cell, decimal)
        if not isfinite(value):
            if not is_missing(cell) and normal_value(cell) not in codes:
                odd.append(place)
            value = np.nan
        elif codes and normal_value(cell) in codes:
            value = np.nan
        known[place] = value
    if odd:
        raise ValueError(min(map(cells.first, odd)))
    return known[cells.codes]


@lru_cache(maxsize=1 << 16)
def parse_date(cell: str, pattern: str) -> date | None:
    """Return the day in ``cell`` by a ``strptime`` pattern, with or without a time of day behind it."""
    try:
        return datetime.strptime(_TIME_OF_DAY.sub("", cell), pattern).date()
    except ValueError:
        return None


def words(text: str) -> list[str]:
    """Split text into lower-case words and single other marks."""
    return re.findall(r"\w+|[^\w\s]", composed(text).lower())


@lru_cache(maxsize=1 << 16)
def word_hash(word: str) -> int:
    """A fixed, public 64-bit hash of a word."""
    raw = word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, person=b"tacit-words").digest(), "big")


_CODE = re.compile(r"-?(9+|8+|7+|9+[0-9])|-1")


def sentinels(numbers: NDArray[np.float64]) -> list[float]:
    """Values at an end of a column that repeat, lie far from all others and are written like codes: -9, 99, 999, ..."""
    known = numbers[~np.isnan(numbers)]
    found = []
    for code in dict.fromkeys((known.min(), known.max())) if known.size else ():
        if not _CODE.fullmatch(f"{code:.12g}") or np.count_nonzero(known == code) < 3:
            continue
        others = known[known != code]
        low, high = (others.min(), others.max()) if others.size else (code, code)
        if min(abs(code - low), abs(code - high)) > high - low and len(np.unique(others)) >= 3:
            found.append(float(code))
    return found
