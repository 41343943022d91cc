"""From scores to guesses, with thresholds chosen on trials that are not counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tacit.audit.one_run import Guesses
from tacit.errors import ArgumentError

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

RULES = ((0.27, 0.27), (0.04, 0.04), (0.004, 0.004), (0.0, 0.1), None)
"""Shares of trials guessed to be out (the lowest scores) and in (the highest); None: all, split where it serves best.

The first is best for a faint Gaussian signal, the next two where some canaries are easy to see, the fourth under
sampling, where it is the presence of a canary that shows, the last where all of them show. A bound is the best of all,
each at its share of the error.
"""

CHOOSING = 0.25
"""Share of the trials, the first ones, on which thresholds are set; they are not counted."""

LEAST_TRIALS = 40


@dataclass(frozen=True)
class Trials:
    """One score per trial, higher where the canary seems to be in, and whether it really was."""

    scores: Floats
    present: Bits

    def __post_init__(self) -> None:
        if self.scores.shape != self.present.shape or self.scores.ndim != 1:
            raise ArgumentError(
                f"Every trial needs one score and one coin, got {self.scores.shape} and {self.present.shape}."
            )
        if np.isnan(self.scores).any():
            raise ArgumentError("A score is not a number; the canaries cannot be ranked.")

    def __len__(self) -> int:
        return len(self.scores)

    def split(self, share: float) -> tuple[Trials, Trials]:
        """The first trials, at least one, and the others."""
        first = max(1, round(share * len(self)))
        return (
            Trials(self.scores[:first], self.present[:first]),
            Trials(self.scores[first:], self.present[first:]),
        )

    def guess(self, low: float, high: float) -> Guesses:
        """Guess "out" at or below ``low``, "in" at or above ``high``, nothing between."""
        said_in, said_out = self.scores >= high, (self.scores <= low) & (self.scores < high)
        right = int((said_in & self.present).sum() + (said_out & ~self.present).sum())
        return Guesses(len(self), int(said_in.sum() + said_out.sum()), right)

    def roc(self, points: int = 51) -> list[tuple[float, float]]:
        """(false alarms, misses) of tests at rising thresholds."""
        inside, outside = np.sort(self.scores[self.present]), np.sort(self.scores[~self.present])
        if not len(inside) or not len(outside):
            return []
        thresholds = np.quantile(self.scores, (1 - np.cos(np.linspace(0, np.pi, points))) / 2)
        alarms = 1 - np.searchsorted(outside, thresholds, side="left") / len(outside)
        misses = np.searchsorted(inside, thresholds, side="left") / len(inside)
        return sorted({(round(float(a), 5), round(float(m), 5)) for a, m in zip(alarms, misses, strict=True)})


def guess_by_rules(trials: Trials) -> tuple[Guesses, ...]:
    """Guesses by each of the ``RULES``: thresholds are quantiles of the first trials, the others are counted."""
    first, counted = trials.split(CHOOSING)
    found = []
    for rule in RULES:
        low, high = _thresholds(first, rule)
        share = first.guess(low, high).made / len(first)
        found.append(replace(counted.guess(low, high), share=share))
    return tuple(found)


def _thresholds(first: Trials, rule: tuple[float, float] | None) -> tuple[float, float]:
    """At or below the first a trial is guessed to be out, at or above the second in."""
    if rule is not None:
        out, into = rule
        low = float(np.quantile(first.scores, out)) if out else -np.inf
        return low, float(np.quantile(first.scores, 1 - into))
    order = np.argsort(first.scores, kind="stable")
    inside = first.present[order]
    # Right guesses if the trials from here on are guessed to be in, and those before to be out.
    right = np.append(np.cumsum(inside[::-1])[::-1], 0) + np.append(0, np.cumsum(~inside))
    scores = first.scores[order]
    between = np.concatenate([scores[:1], (scores[:-1] + scores[1:]) / 2, [np.inf]])
    best = float(between[int(np.argmax(right))])
    return best, best
