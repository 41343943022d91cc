"""Proposition 5.1: when does leaving coordinates silent lower the error of one step?

G is the full-data clipped gradient, A the active support with k of d coordinates, ν² the variance of the
noise in a coordinate of the averaged gradient. The error is that of the released step as an estimate of G:

    E(A) = ‖G outside A‖² + k ν²,        E(all) = d ν².

What the proposition leaves out: the variance of mini-batch sampling, which both sides share, and the order
of mask and clip. A masked gradient is shorter, so it is clipped less, and the mean inside A is not the
restriction of G; :func:`tacit.theory.mask_then_clip_gap` measures the difference.
"""

from __future__ import annotations

from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_non_negative


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
