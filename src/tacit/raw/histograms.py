"""Counts of rows, column by column: a sum over rows of vectors whose norm is bounded by construction.

A row's vector has one entry per column, at the place of its value in that column's list of bins or names, and every
such entry is the column's weight w. So a row's vector has the squared norm Σ w², whatever the row holds, and adding or
removing a row changes the sum by that vector. Counting is exact: counts are whole numbers below 2⁵³.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import ArgumentError, check_positive

ROUNDING = 2.0**-20
"""Share of the sensitivity that covers the rounding of weights and of weighted counts below 2³¹."""
MOST_ROWS = 1 << 31


@dataclass(frozen=True)
class ColumnCounts:
    """Raw counts, to be released and nothing else.

    ``binned`` holds one count per bin of a column; the bins are public. ``named`` holds one count per text that occurs
    in a column; the texts are as private as the counts. ``weights`` are those of the columns.
    """

    binned: dict[str, Tensor]
    named: dict[str, dict[str, int]]
    weights: dict[str, float]
    sensitivity: float

    @property
    def size(self) -> int:
        """How many numbers with public places there are to release."""
        return sum(counts.numel() for counts in self.binned.values())


def count_columns(
    binned: Mapping[str, tuple[NDArray[np.int64], int]],
    named: Mapping[str, Sequence[str]],
    weights: Mapping[str, float],
) -> ColumnCounts:
    """Count rows: by bin where a column gives each row's bin (below a public number of bins), else by text.

    Every column has a positive weight; the squares of the weights add up to at most 1.
    """
    columns = [*binned, *named]
    if len(set(columns)) != len(columns) or set(columns) != set(weights):
        raise ArgumentError("Every column is counted once, and has one weight.")
    total = math.fsum(check_positive(f"The weight of {name!r}", w) ** 2 for name, w in weights.items())
    if total > 1 + ROUNDING / 4:
        raise ArgumentError(f"The squares of the weights add up to {total:g}, above 1.")
    rows = {len(places) for places, _ in binned.values()} | {len(texts) for texts in named.values()}
    if len(rows) > 1 or max(rows, default=0) > MOST_ROWS:
        raise ArgumentError("All columns must have the same rows.")
    counts: dict[str, Tensor] = {}
    for name, (places, bins) in binned.items():
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < bins:
            raise ArgumentError(f"Column {name!r} has a bin that its {bins} bins do not have.")
        counts[name] = torch.from_numpy(np.bincount(places, minlength=bins).astype(np.float64))
    texts = {name: dict(Counter(column)) for name, column in named.items()}
    return ColumnCounts(counts, texts, dict(weights), 1 + ROUNDING)
