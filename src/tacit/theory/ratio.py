"""How many coordinates to keep active: a choice made of released values and public numbers only.

Proposition 5.1: when does leaving coordinates silent lower the error of one step?

G is the full-data clipped gradient, A the active support with k of d coordinates, ν² the variance of the
noise in a coordinate of the averaged gradient. The error is that of the released step as an estimate of G:

    E(A) = ‖G outside A‖² + k ν²,        E(all) = d ν².

What the proposition leaves out: the variance of mini-batch sampling, which both sides share, and the order
of mask and clip. A masked gradient is shorter, so it is clipped less, and the mean inside A is not the
restriction of G; :func:`tacit.theory.mask_then_clip_gap` measures the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_non_negative, check_share
from tacit.theory.capture import CaptureEstimate


@dataclass(frozen=True)
class RatioChoice:
    """The chosen number of active coordinates, and one sentence that says why."""

    active: int
    dimension: int
    reason: str

    @property
    def dense(self) -> bool:
        """Whether every coordinate stays active."""
        return self.active == self.dimension

    @property
    def ratio(self) -> float:
        """k/d"""
        return self.active / self.dimension


def choose_active(
    estimate: CaptureEstimate, *, noise_variance: float, tolerance: float = 0.2, caution: float = 2.0
) -> RatioChoice:
    """The smallest k that safely leaves at most ``tolerance`` of the gradient energy outside, else d.

    With U and C the estimated energy outside and inside the k best-ranked coordinates, and τ the tolerance,
    the claim "U ≤ τ(U + C)" is D = (1 − τ)U − τC ≤ 0. It counts as safe at k if D plus ``caution`` of its
    standard deviations is at most 0 for this *and every larger* k. The uncertainty of the total is part of
    that of D, since U and C are measured on disjoint coordinates. The truth is monotone in k, so a lucky
    dip of the estimate at one k proves nothing; and at k = d the claim is that the total energy is
    ``caution`` standard deviations above zero, so pure noise stays dense.

    Two more conditions keep sparsity from hurting. k < (1 − τ)d: from there on a random support would do as
    well. And U plus ``caution`` standard deviations ≤ (d − k)ν₂², with ``noise_variance`` = ν₂² of the
    coming phase: the one-step condition of Proposition 5.1, which is necessary (see
    :mod:`tacit.theory.score`).
    """
    check_non_negative("The noise variance", noise_variance)
    check_share("The tolerance", tolerance, one_allowed=False)
    check_non_negative("The caution", caution)
    d, counts = estimate.dimension, estimate.counts
    outside = estimate.uncaptured
    contrast = (1 - tolerance) * outside - tolerance * estimate.captured
    contrast_std = (
        (1 - tolerance) ** 2 * estimate.uncaptured_variance + tolerance**2 * estimate.captured_variance
    ).sqrt()
    within = contrast + caution * contrast_std <= 0
    safe = within.flip(0).cummin(0).values.flip(0)
    if not bool(safe[-1]):
        return _dense(
            d,
            f"the warm-up's gradient energy of {estimate.total:.3g} is not {caution:g} standard deviations "
            f"({estimate.total_std:.3g} each) above zero, so it cannot tell coordinates apart",
        )
    safe &= counts < (1 - tolerance) * d
    if not bool(safe.any()):
        return _dense(
            d,
            f"no support of less than {1 - tolerance:.0%} of them safely captures {1 - tolerance:.0%} "
            "of the warm-up's gradient energy",
        )
    upper = outside + caution * estimate.uncaptured_variance.sqrt()
    worth = safe & (upper <= (d - counts) * noise_variance)
    if not bool(worth.any()):
        return _dense(
            d, "the noise that silent coordinates would save is less than the gradient energy they would lose"
        )
    at = int(torch.nonzero(worth)[0])
    k = int(counts[at])
    std = math.sqrt(float(estimate.uncaptured_variance[at]))
    return RatioChoice(
        k,
        d,
        f"{k} of {d} coordinates stay active ({k / d:.1%}): on held-out warm-up steps they leave "
        f"{float(outside[at]) / estimate.total:.1%} ± {std / estimate.total:.1%} of the gradient energy "
        f"outside, safely within {tolerance:.0%}.",
    )


def _dense(dimension: int, why: str) -> RatioChoice:
    return RatioChoice(dimension, dimension, f"All {dimension} coordinates stay active: {why}.")


def restricted_error(silent_energy: float, active: int, noise_variance: float) -> float:
    """E(A) = ``silent_energy`` + k ν², with ``silent_energy`` = Σ of G² over the silent coordinates."""
    check_non_negative("The silent energy", silent_energy)
    check_non_negative("The noise variance", noise_variance)
    return silent_energy + check_count("The number of active coordinates", active, least=0) * noise_variance


def full_error(dimension: int, noise_variance: float) -> float:
    """E(all) = d ν², the error of a dense step."""
    return restricted_error(0.0, dimension, noise_variance)


def break_even_energy(dimension: int, active: int, noise_variance: float) -> float:
    """(d − k) ν²: restriction lowers the one-step error iff the silent energy is below this."""
    _check_active(dimension, active)
    return full_error(dimension, noise_variance) - full_error(active, noise_variance)


def restriction_helps(silent_energy: float, dimension: int, active: int, noise_variance: float) -> bool:
    """Whether E(A) < E(all), that is, ``silent_energy`` < (d − k) ν²."""
    check_non_negative("The silent energy", silent_energy)
    return silent_energy < break_even_energy(dimension, active, noise_variance)


def worth_keeping(squared_signal: Tensor, noise_variance: float) -> Tensor:
    """The support that minimises E(A): the mask of coordinates with G² > ν².

    E(A) is a sum over coordinates, G² for a silent one and ν² for an active one, so each is decided alone.
    This is a rule for one step; over many steps it silences far too much, see
    :func:`tacit.theory.keep_threshold`.
    """
    check_non_negative("The noise variance", noise_variance)
    return squared_signal > noise_variance


def random_silent_energy(total_energy: float, dimension: int, active: int) -> float:
    """(1 − k/d) ‖G‖²: the expected silent energy of a uniformly random support of size k."""
    check_non_negative("The total energy", total_energy)
    _check_active(dimension, active)
    return (1 - active / dimension) * total_energy


def _check_active(dimension: int, active: int) -> None:
    check_count("The dimension", dimension)
    if check_count("The number of active coordinates", active, least=0) > dimension:
        raise ArgumentError(f"{active} coordinates cannot be active out of {dimension}; pass k ≤ d.")
