"""Whose row is it: the ids of a table's column, of a text's author, or of the people in a folder of images."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Sequence
from decimal import Context, Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data.table_file import Table, read_columns
from tacit.data.values import is_missing
from tacit.errors import ArgumentError, FileError
from tacit.units import numbered

Ids = NDArray[np.int64]

FILE_COLUMN, UNIT_COLUMN = "file", "unit"
"""The columns of a table that says whose images those of a folder are."""

_BETWEEN = "\x1f"
"""Between the parts of an id that a pattern finds."""
_DIGITS = Context(prec=1000)
_REAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+[eE][+-]?\d+|\d+\.?\d*[eE][+-]?\d+)")


def unit_column(table: Table, name: str, target: str) -> list[str]:
    """The column that says whose row each is; a column that cannot be meant is refused."""
    cells = table.column(name)
    if name == target:
        raise ArgumentError(
            f"The target {name!r} cannot be the unit of privacy as well; name the column of ids."
        )
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise FileError(
                f"The unit {name!r} is missing in {table.where(row)}; give every row an id, a new one where the owner "
                "is not known."
            )
    return _told_apart(list(cells), f"The unit column {name!r} of {table.path}")


def image_units(paths: Sequence[str], root: Path, unit: str) -> list[str]:
    """Whose each image is: by a pattern on its path below ``root``, or by a table with columns file and unit."""
    found = _listed(paths, Path(unit)) if Path(unit).is_file() else _matched(paths, unit)
    return _told_apart(found, f"The unit {unit!r} of {root}")


def unit_words(unit: str) -> str:
    """The unit of privacy in the words of a certificate."""
    return f"one unit: everything in the training data that belongs to one value of {unit!r}"


def count_words(unit: str) -> str:
    """What is said to be public about units."""
    return (
        f"The number of units (different values of {unit!r}) in the training data: it is used and shown as a public "
        "number. How many rows each has is not."
    )


def parted(ids: Sequence[str], *masks: NDArray[np.bool_]) -> list[Ids]:
    """The ids of the rows of each mask, as numbers."""
    codes, _ = numbered(ids)
    return [codes[mask] for mask in masks]


def _told_apart(ids: list[str], where: str) -> list[str]:
    """Refuse ids that are all the same, all different, or real numbers."""
    distinct = set(ids)
    if len(distinct) == 1:
        raise FileError(
            f"{where} has the same value everywhere, so there would be one unit only; name another."
        )
    if len(distinct) == len(ids):
        raise FileError(
            f"{where} has a different value for every row, so it groups nothing; leave unit out to protect rows, or "
            "name the column that says whose row it is."
        )
    if all(_REAL.fullmatch(value) or value.lstrip("+-").isdigit() for value in distinct):
        real = next((value for value in ids if _REAL.fullmatch(value)), None)
        if real is not None:
            raise FileError(
                f"{where} holds real numbers such as {real!r}, which do not say reliably whose row it is; write ids as "
                "whole numbers or as text."
            )
    spelled: dict[str, str] = {}
    for value in distinct:
        other = spelled.setdefault(_plain(value), value)
        if other != value:
            one, two = sorted((other, value))
            raise FileError(
                f"{where} holds {one!r} and {two!r}, which may be one person but would be two units: "
                "write every id in one way; ids of different people must differ in more than case, spaces or zeros."
            )
    return ids


def _plain(value: str) -> str:
    """An id without what two spellings of one id may differ in: case, spaces, forms of letters, zeros of numbers."""
    text = unicodedata.normalize("NFKC", value).casefold()
    text = "".join(c for c in text if c == _BETWEEN or not (c.isspace() or unicodedata.category(c) == "Cf"))
    if _REAL.fullmatch(text) or text.lstrip("+-").isdecimal():
        with contextlib.suppress(ArithmeticError):  # such as signs in a row, or an exponent beyond all bounds
            return str(Decimal(text).normalize(_DIGITS))
    return text


def _matched(paths: Sequence[str], pattern: str) -> list[str]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ArgumentError(f"The unit {pattern!r} is neither a file nor a pattern: {error}.") from error
    found = []
    for path in paths:
        match = expression.search(path)
        if match is None:
            raise FileError(
                f"The pattern {pattern!r} finds no unit in {path!r}; it must match every image's path."
            )
        groups = match.groups()
        if any(group is None for group in groups):
            raise FileError(f"A group of the pattern {pattern!r} matches nothing in {path!r}.")
        found.append(_BETWEEN.join(groups) if groups else match[0])
    return found


def _listed(paths: Sequence[str], file: Path) -> list[str]:
    table = read_columns(file)
    named = dict(zip(table.column(FILE_COLUMN), table.column(UNIT_COLUMN), strict=True))
    if len(named) < table.rows:
        raise FileError(f"{file} names an image twice; list every image once.")
    for path in paths:
        if path not in named or is_missing(named[path]):
            raise FileError(
                f"{file} does not say whose image {path!r} is; list every image below the folder."
            )
    return [named[path] for path in paths]
