"""Exact random draws from a cryptographic source.

Where local mechanisms take their randomness from.

A mechanism asks for uniform whole numbers and nothing else, so the same code runs in a simulation, on a seeded
``numpy.random.Generator`` that anyone can replay, and on a client, on the operating system's cryptographic
source that nobody can. Both give every whole number exactly the same probability: no real number is drawn,
so none has a grain that could show.

Drawing from a `RankLaw` in O(d) per client, for many clients at once.

Two ways, both with exactly the probabilities of the law, chosen by cost alone:

* *draw a rank, then find it*: one uniform ticket gives the rank, and a sort (short rows) or a selection
  (long rows, linear in d) gives the coordinate that holds it;
* *propose, rank, accept*: propose a coordinate uniformly, count how many entries are below it (one pass
  over the row), accept with probability w(rank)/max w. The number of proposals does not depend on the data,
  because the rank of a uniform proposal is uniform, and it is at most e^ε on average.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError
from tacit.federated.selection import RankLaw


class Uniforms(Protocol):
    """A source of independent uniform whole numbers; ``numpy.random.Generator`` is one."""

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent draws from {low, ..., high-1}, each equally likely."""
        ...


class SystemUniforms:
    """Whole numbers from the operating system's cryptographic generator: for values that leave a client."""

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent draws from {low, ..., high-1}, each equally likely.

        Draws words of as many bits as ``high - low`` needs and drops those that are too large.
        """
        count = high - low
        unused = np.uint64(64 - max(1, (count - 1).bit_length()))
        kept = np.empty(0, np.uint64)
        while kept.size < size:
            words = np.frombuffer(os.urandom(8 * 2 * (size - kept.size)), np.uint64) >> unused
            kept = np.concatenate([kept, words[words < np.uint64(count)]])
        return kept[:size].astype(np.int64) + low


BOTTOM = -1

# Measured: a row shorter than this is sorted faster than it is partitioned; a proposal costs a fixed
# overhead worth about 400 entries of a partition, and at most twelve passes over a long row cost less than
# one partition.
_SORT_BELOW = 512
_ENTRIES_PER_PROPOSAL = 400
_MOST_PROPOSALS = 12

Indices = NDArray[np.int64]


def sample_coordinates(law: RankLaw, magnitudes: NDArray[np.floating], uniforms: Uniforms) -> Indices:
    """Draw one coordinate per row of ``magnitudes`` (n × d, finite) from ``law``; `BOTTOM` stands for ⊥."""
    if magnitudes.ndim != 2 or magnitudes.shape[1] != law.d:
        raise ArgumentError(f"magnitudes must be n × {law.d} for this selection, got {magnitudes.shape}.")
    if law.expected_proposals < min(_MOST_PROPOSALS, law.d / _ENTRIES_PER_PROPOSAL):
        return sample_by_proposal(law, magnitudes, uniforms)
    return sample_by_rank(law, magnitudes, uniforms)


def sample_by_rank(law: RankLaw, magnitudes: NDArray[np.floating], uniforms: Uniforms) -> Indices:
    """Draw a rank from ``law`` for every row, then return the coordinate that holds it."""
    ticket = uniforms.integers(0, law.total, len(magnitudes))
    drawn = np.searchsorted(law.cumulative, ticket, side="right")
    if not law.bottom_tickets:
        return _coordinates_of_rank(magnitudes, drawn)
    chosen = np.full(len(magnitudes), BOTTOM, np.int64)
    rows = np.flatnonzero(drawn < law.d)
    chosen[rows] = _coordinates_of_rank(magnitudes[rows], drawn[rows])
    return chosen


def sample_by_proposal(law: RankLaw, magnitudes: NDArray[np.floating], uniforms: Uniforms) -> Indices:
    """Propose coordinates uniformly and accept each with probability w(rank)/max w."""
    n, d = magnitudes.shape
    chosen = np.full(n, BOTTOM, np.int64)
    open_rows = np.flatnonzero(uniforms.integers(0, law.total, n) >= law.bottom_tickets)
    while open_rows.size:
        proposal = uniforms.integers(0, d, open_rows.size)
        ticket = uniforms.integers(0, law.most, open_rows.size)
        accepted = ticket < law.tickets[_ranks_of(magnitudes, open_rows, proposal)]
        chosen[open_rows[accepted]] = proposal[accepted]
        open_rows = open_rows[~accepted]
    return chosen


def _coordinates_of_rank(magnitudes: NDArray[np.floating], rank: Indices) -> Indices:
    """Return, for every row, the coordinate whose zero-based rank is ``rank``; ties go by position."""
    if not len(magnitudes):
        return np.empty(0, np.int64)
    if magnitudes.shape[1] < _SORT_BELOW:
        value = np.take_along_axis(np.sort(magnitudes, axis=1), rank[:, None], axis=1)
    else:
        value = np.array([[np.partition(row, r)[r]] for row, r in zip(magnitudes, rank, strict=True)])
    equal = magnitudes == value
    place = rank - np.count_nonzero(magnitudes < value, axis=1)
    result: Indices = equal.argmax(axis=1)
    for row in np.flatnonzero(place):
        result[row] = np.flatnonzero(equal[row])[place[row]]
    return result


def _ranks_of(magnitudes: NDArray[np.floating], rows: Indices, coordinate: Indices) -> Indices:
    """Return the zero-based rank, within its row, of one coordinate in each of ``rows``; ties by position."""
    result = np.empty(rows.size, np.int64)
    for i, (row, j) in enumerate(zip(rows, coordinate, strict=True)):
        entries = magnitudes[row]
        value = entries[j]
        result[i] = np.count_nonzero(entries[:j] <= value) + np.count_nonzero(entries[j + 1 :] < value)
    return result
