"""Counts of a table's columns: charged, noised, released.

A name of a category is as private as a row. It is released only with a noisy count that one row alone reaches with a
probability below δ'; δ' is set aside from the promise. docs/concepts/theory.md has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.special import ndtri_exp

from tacit.errors import LedgerError, check_count
from tacit.raw.histograms import ColumnCounts, count_columns
from tacit.release.ledger import Ledger
from tacit.release.ledger_file import Charge
from tacit.release.noise import LATTICE_BITS, Noise

__all__ = ["ColumnCounts", "ReleasedColumns", "count_columns", "names_threshold", "release_columns"]


@dataclass(frozen=True)
class ReleasedColumns:
    """Noisy counts: public. ``deviations`` are the standard deviations of the noise, by column."""

    binned: dict[str, tuple[float, ...]]
    named: dict[str, dict[str, float]]
    deviations: dict[str, float]


def names_threshold(log_delta: float, columns: int) -> float:
    """How many standard deviations above 1 a count must be, so that a name which one row alone has appears in any of
    ``columns`` columns with a probability of at most e^``log_delta``.
    """
    check_count("columns", columns)
    # The lattice on which noise is rounded may lift a value by half a step.
    return float(-ndtri_exp(log_delta - math.log(columns))) + 2.0**-LATTICE_BITS


def release_columns(
    counts: ColumnCounts, charge: Charge, ledger: Ledger, noise: Noise, *, log_delta: float
) -> ReleasedColumns:
    """Charge the ledger, add N(0, (σS/w)²) to every count of a column of weight w, drop names with small counts.

    Divided by their weights, these are the entries of one Gaussian mechanism of noise multiplier σ. The charge is
    durable before the first noise is drawn. ``log_delta`` is the logarithm of the probability with which one row may
    make any name appear. How many names there are is not released, nor charged.
    """
    written = (charge.sampling_rate, charge.clip_norm, charge.active, charge.secure_noise)
    actual = (1.0, 1.0, counts.size, noise.secure)
    if written != actual:
        raise LedgerError(
            "The charge does not describe the counts: it says (sampling rate, weight of a row, released numbers, "
            f"secure noise) = {written}, but they are {actual}."
        )
    scale = charge.noise_multiplier * counts.sensitivity
    ledger.charge(charge)
    noise.begin(charge.index)
    binned, named = {}, {}
    for name, values in counts.binned.items():
        weight = counts.weights[name]
        values.mul_(weight)
        noise.add(values, scale, 1 / weight)
        binned[name] = tuple(values.tolist())
    cut = names_threshold(log_delta, len(counts.named)) if counts.named and scale else 0.0
    for name, found in counts.named.items():
        weight = counts.weights[name]
        texts = sorted(found)
        noisy = torch.tensor([found[text] for text in texts], dtype=torch.float64).mul_(weight)
        noise.add(noisy, scale, 1 / weight)
        least = 1 + cut * scale / weight
        named[name] = {
            text: value for text, value in zip(texts, noisy.tolist(), strict=True) if value >= least
        }
    return ReleasedColumns(binned, named, {name: scale / weight for name, weight in counts.weights.items()})
