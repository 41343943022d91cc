"""Facts about columns from noisy counts: ranges, quantiles, lists of categories, shares of classes.

Numbers are counted in rounds. The first counts on a public grid of powers of two; each further one divides the range
that holds the rows into intervals of about equal counts. Everything here works on counts that were released, except
``places``, which says in which of the public bins each row lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.data.encode import PARTS

Floats = NDArray[np.float64]

ROUNDS = 3
"""How often numbers are counted: to find their size, then their range, then their quantiles."""
_MOST_INTERVALS = 40
_SURE = 4.0
"""Standard deviations of the noise above which a count is taken for rows."""
_LIKELY = 2.0
"""The same for one bin of several that together surely hold rows."""
GRID: Floats = np.concatenate([-(2.0 ** np.arange(48, -25, -1)), 2.0 ** np.arange(-24, 49)])
"""The public grid of the first round; numbers nearer to 0 than 2⁻²⁴ count as 0, those beyond 2⁴⁸ as 2⁴⁸."""


@dataclass(frozen=True)
class Counted:
    """Released counts of a number: between ``edges``, and of missing values. Every count has noise of ``deviation``."""

    edges: Floats
    counts: Floats
    missing: float
    deviation: float


@dataclass(frozen=True)
class NumberFacts:
    """What is known of a number: the range that holds most rows, the middle, the cuts, whether values are missing."""

    low: float
    high: float
    typical: float
    cuts: tuple[float, ...]
    missing: bool


def places(values: Floats, edges: Floats) -> tuple[NDArray[np.int64], int]:
    """The bin of each row, by ``edges``, the last one for missing values; and the number of bins."""
    bins = len(edges) + 1
    found = np.searchsorted(edges, values, side="right").astype(np.int64)
    return np.where(np.isnan(values), bins, found), bins + 1


def counted(edges: Floats, released: tuple[float, ...] | list[float], deviation: float) -> Counted:
    """Released counts of the bins that ``places`` gave."""
    values = np.array(released, dtype=np.float64)
    return Counted(edges, values[:-1], float(values[-1]), deviation)


def refined(seen: Counted, rows: int) -> Floats:
    """Edges of the next round: the range that surely holds rows, divided into intervals of about equal counts."""
    bounds, mass = _inside(seen)
    intervals = _intervals(rows, seen.deviation)
    mass = _evened(mass, intervals / 4)
    return _quantiles(bounds, mass, np.linspace(0, 1, intervals + 1))


def number_facts(seen: Counted, rows: int) -> NumberFacts:
    """What the last round says."""
    bounds, mass = _inside(seen)
    parts = min(PARTS, _intervals(rows, seen.deviation))
    wanted = np.arange(1, parts) / parts
    if parts == PARTS:
        wanted = np.array([0.01, *wanted, 0.99])
    shares = np.cumsum(_evened(mass, parts))
    places = np.searchsorted(shares / shares[-1], wanted) + 1
    low, high = float(bounds[0]), float(bounds[-1])
    if not low < high:
        high = low + max(abs(low) * 2.0**-10, 2.0**-24)
    cuts = np.unique(bounds[places.clip(1, max(1, len(bounds) - 2))])
    typical = float(_quantiles(bounds, mass, np.array([0.5]))[0])
    return NumberFacts(
        low,
        high,
        min(max(typical, low), high),
        tuple(cut for cut in cuts.tolist() if low < cut < high),
        seen.missing > 3 * seen.deviation,
    )


def class_shares(counts: tuple[float, ...] | list[float], deviation: float) -> tuple[float, ...]:
    """The share of each class; none is taken for rarer than the noise can tell."""
    floor = max(deviation, 0.5)
    kept = np.maximum(np.array(counts, dtype=np.float64), floor)
    shares = kept / kept.sum()
    return tuple(float(f"{share:.6g}") for share in shares)


def category_names(found: Mapping[str, float], normal: Mapping[str, str]) -> tuple[str, ...]:
    """Released names, the most frequent first; of several spellings of one value the most frequent."""
    ranked = sorted(found, key=lambda name: (-found[name], name))
    kept: dict[str, str] = {}
    for name in ranked:
        kept.setdefault(normal[name], name)
    return tuple(kept.values())


def _intervals(rows: int, deviation: float) -> int:
    """Into how many intervals rows can be divided so that their counts stand out from the noise."""
    return int(min(_MOST_INTERVALS, max(4.0, rows / (4 * deviation)))) if deviation else _MOST_INTERVALS


def _inside(seen: Counted) -> tuple[Floats, Floats]:
    """Bounds and counts of the bins from the first to the last that surely hold rows, as the noise lets us tell."""
    edges = seen.edges
    outer = np.concatenate([edges[:1], edges, edges[-1:]])
    alone = np.array_equal(edges, GRID)
    first = _first_sure(seen.counts, seen.deviation, alone)
    last = len(seen.counts) - 1 - _first_sure(seen.counts[::-1], seen.deviation, alone)
    if first > last:
        first = last = int(np.argmax(seen.counts))
    mass = np.maximum(seen.counts[first : last + 1] - seen.deviation / 2, 0)
    if not mass.any():
        mass = np.ones_like(mass)
    return outer[first : last + 2], mass


def _first_sure(counts: Floats, deviation: float, alone: bool) -> int:
    """The first bin that holds rows, alone or with its neighbours, beyond what noise explains.

    On the grid, neighbours count only in front of a bin that is sure ``alone``: any window with that bin in it would be
    sure, and a bin of noise a hundred times too far out would pass for rows. Later rounds divide a range that is
    known to hold rows, and their outermost bins hold few.
    """
    first = len(counts)
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    for width in (1, 2, 4, 8):
        together = sums[width:] - sums[:-width]
        if alone:
            together = together[: max(0, first - width + 1)]
        found = np.flatnonzero(together > max(_SURE * deviation * width**0.5, 0.5))
        if len(found):
            start = int(found[0])
            inside = np.flatnonzero(counts[start : start + width] > _LIKELY * deviation)
            first = min(first, start + int(inside[0] if len(inside) else width - 1))
    return first


def _evened(mass: Floats, parts: float) -> Floats:
    """The counts with none above an even part of their sum, so that one frequent value leaves room for others."""
    weights = mass
    for _ in range(16):  # few bins of rows among many of noise must not sink to the height of the noise
        weights = np.minimum(mass, max(weights.sum(), mass.sum() / 4) / parts)
    return weights


def _quantiles(bounds: Floats, mass: Floats, shares: Floats) -> Floats:
    """Where so much of the mass lies below, if it is spread evenly within each bin."""
    sums = np.concatenate([[0.0], np.cumsum(mass)])
    return np.unique(np.interp(shares * sums[-1], sums + np.arange(len(sums)) * 1e-12 * sums[-1], bounds))
