"""Means, spreads and paired differences over the runs of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.errors import ArgumentError
from tacit.experiments.comparison import CellResult


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter is not a number for a single seed."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + (f" ± {self.deviation:.4f}" if math.isfinite(self.deviation) else "")


@dataclass(frozen=True)
class Row:
    """One method at one ε. ``difference`` is to the first method at the same ε, seed by seed.

    Its ``deviation`` is the standard error of that mean difference.
    """

    method: str
    epsilon: float
    seeds: int
    measures: dict[str, Spread]
    difference: Spread | None
    active: float
    coordinates: int
    seconds: float


def summarise(results: Sequence[CellResult], measure: str) -> list[Row]:
    """One row per method and ε; ``measure`` is what differences are taken of."""
    groups: dict[tuple[str, float], list[CellResult]] = {}
    for result in results:
        if measure not in result.held_out:
            raise ArgumentError(f"There is no measure {measure!r}; there are {', '.join(result.held_out)}.")
        groups.setdefault((result.method, result.epsilon), []).append(result)
    first = results[0].method
    rows = []
    for (method, epsilon), group in groups.items():
        base = {r.seed: r.held_out[measure] for r in groups.get((first, epsilon), [])}
        pairs = [r.held_out[measure] - base[r.seed] for r in group if r.seed in base]
        rows.append(
            Row(
                method,
                epsilon,
                len(group),
                {name: _spread([r.held_out[name] for r in group]) for name in group[0].held_out},
                paired(pairs) if pairs and method != first else None,
                float(np.mean([r.active for r in group])),
                group[0].coordinates,
                float(np.mean([r.seconds for r in group])),
            )
        )
    return rows


def paired(differences: Sequence[float]) -> Spread:
    """Mean of paired differences and its standard error."""
    spread = _spread(differences)
    return Spread(spread.mean, spread.deviation / math.sqrt(len(differences)))


def _spread(values: Sequence[float]) -> Spread:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Spread(float(np.mean(values)), deviation)
