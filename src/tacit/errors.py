"""The errors Tacit raises, and the argument checks that raise them.

Every message is one sentence or two: what is wrong, where, and what to do.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real
from typing import TypeGuard


class TacitError(Exception):
    """Base of every error that Tacit raises on purpose."""


class ArgumentError(TacitError, ValueError):
    """An argument is outside what the function accepts."""


class ModelError(TacitError):
    """The model or the loss cannot be trained with per-example clipping as it stands."""


class Unseen(ModelError):
    """A layer or an operation came up that no look at the model has met; another look may."""


class ExampleError(ModelError):
    """The data set, collate, model or loss does not take an example."""


class LedgerError(TacitError):
    """The ledger is missing, belongs to another run, or does not fit what it is asked."""


NO_FILE_LOCKS = (
    "The ledger needs the file locks of Linux, macOS or another Unix; on Windows, run Tacit inside WSL."
)


class RankError(TacitError):
    """Processes that train together do not agree, or one of them has failed or is gone."""


class LoaderError(TacitError):
    """A process that loads data has died."""


class FileError(TacitError):
    """A file cannot be read or written, or does not hold what it should."""


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str = ".", cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown ``name``: the known one that it resembles, or ``otherwise``."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a real number; True and False are not."""
    # The second half alone would do, but the abstract class of numbers takes long to answer.
    return type(value) in (float, int) or (isinstance(value, Real) and not isinstance(value, bool))


def _is_finite(value: object) -> TypeGuard[float]:
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number above zero."""
    if not _is_finite(value) or value <= 0:
        raise ArgumentError(f"{name} must be a finite number above 0, got {value!r}.")
    return value


def check_non_negative(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number of at least zero."""
    if not _is_finite(value) or value < 0:
        raise ArgumentError(f"{name} must be a finite number of at least 0, got {value!r}.")
    return value


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return value


def check_share(name: str, value: float, *, one_allowed: bool = True) -> float:
    """Return ``value`` if it lies in (0, 1], or in (0, 1) where one is not allowed."""
    if not is_number(value) or not (0 < value < 1 or (one_allowed and value == 1)):
        interval = "(0, 1]" if one_allowed else "(0, 1)"
        raise ArgumentError(f"{name} must lie in {interval}, got {value!r}.")
    return value
