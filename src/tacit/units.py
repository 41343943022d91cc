"""The unit of privacy: which examples belong together, told by an id for each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.errors import ArgumentError, check_count

ROWS_PER_UNIT = 32
"""Examples of one unit that take part in a step, at most, unless another number is asked for."""


def numbered(ids: Sequence[Hashable] | np.ndarray) -> tuple[np.ndarray, int]:
    """Each id as a number, counted from 0 in order of first appearance; and how many there are."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iuSU":
        _, first, codes = np.unique(ids, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        return rank[codes.reshape(-1)], len(first)
    seen: dict[Hashable, int] = {}
    codes = np.fromiter((seen.setdefault(item, len(seen)) for item in ids), np.int64, len(ids))
    return codes, len(seen)


@dataclass(frozen=True)
class Units:
    """The examples of a data set, grouped into ``count`` units of privacy.

    ``codes`` has the number of each example's unit. ``order`` holds the examples unit by unit; those of unit u are
    ``order[starts[u] : starts[u + 1]]``. How many units there are is public; how many examples each has is not.
    """

    codes: np.ndarray
    count: int
    order: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(ids: Sequence[Hashable] | np.ndarray, examples: int) -> Units:
        """The units that the ids of ``examples`` examples tell: strings, whole numbers or tuples of them."""
        codes, count = numbered(_checked(ids, examples))
        order = np.argsort(codes, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=count))])
        return Units(codes, count, order, starts)

    @property
    def sizes(self) -> np.ndarray:
        """How many examples each unit has: raw, never to be shown."""
        return np.diff(self.starts)


def check_rows_per_unit(rows: int | None) -> int | None:
    """A number of examples of a unit that may take part in a step; None for all of them."""
    return None if rows is None else check_count("rows_per_unit", rows)


def _checked(ids: Sequence[Hashable] | np.ndarray, examples: int) -> Sequence[Hashable] | np.ndarray:
    """Refuse ids that cannot tell units apart."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    elif hasattr(ids, "to_numpy"):
        ids = ids.to_numpy()
    if isinstance(ids, np.ma.MaskedArray):
        ids = ids.tolist()  # None where there is a mask
    if isinstance(ids, str) or not hasattr(ids, "__len__"):
        raise ArgumentError(
            "units must hold one id per example: a list or an array of strings, integers or tuples."
        )
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ArgumentError(
            f"units must hold one id per example in one dimension, got {ids.ndim} dimensions."
        )
    if len(ids) != examples:
        raise ArgumentError(
            f"units holds {len(ids)} ids for a data set of {examples} examples; give one for each."
        )
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iuSU":
        if ids.dtype.kind in "SU":
            for empty in np.flatnonzero(ids == ids.dtype.type()).tolist():
                _check_id(ids[empty], empty)
        return ids
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "fc":
        raise ArgumentError(
            "units holds real numbers, which do not say reliably what is the same; give strings or integers."
        )
    kinds: dict[object, int] = {}
    for place, item in enumerate(ids):
        _check_id(item, place)
        kinds.setdefault(_kind(item), place)
    if len(kinds) > 1:
        first, other, *_ = kinds.values()
        raise ArgumentError(
            f"units holds ids of different types, as of the examples {first} and {other}: 7 and '7' would be two. "
            "Write all ids in one way, such as all as strings."
        )
    return list(ids)


def _kind(item: object) -> object:
    """What ids must have in common to be compared: being text, bytes or whole numbers, part by part."""
    if isinstance(item, tuple):
        return tuple(map(_kind, item))
    return next(kind for kind in (str, bytes, object) if isinstance(item, kind))


def _check_id(item: object, place: int) -> None:
    for part in item if isinstance(item, tuple) and item else (item,):
        unknown = part is None or type(part).__name__ in (
            "NAType",
            "NaTType",
        )  # those of pandas compare to nothing
        if unknown or part in ("", b"") or (isinstance(part, float) and part != part):
            raise ArgumentError(
                f"The unit of example {place} is missing; give every example an id, a new one where nobody's is known."
            )
        if isinstance(part, bool | np.bool_) or not isinstance(part, str | bytes | int | np.integer):
            raise ArgumentError(
                f"The unit of example {place} is of type {type(part).__name__}; give strings, integers or tuples."
            )
