"""Which groups of coordinates stand out from the noise, and how much signal the others may hold together.

The released gradients of a group of n coordinates, summed over a warm-up, are signal + N(0, s²) on each coordinate.
Without signal, their energy divided by s² is a chi-square of n degrees. A group *stands out* if a pure-noise group
would exceed its energy in one case of a hundred. What matters for the others is not whether each of them has a signal
that can be seen, but what they hold together: a thousand columns that are too weak to be told from noise one by one
may carry most of a prediction as a sum. Their mean energy shows it: with the energies of those that do not stand out
cut off at c, the mean of the rest is that of a truncated chi-square scaled by 1 + λ, which rises with λ, the mean
signal-to-noise ratio of a coordinate. The upper bound on λ is the λ whose mean is two standard errors above the
measured one, and never below that of a measurement of pure noise. Signals count as Gaussian over the groups.

Over T instead of T₁ steps the signal of a sum grows with T and its noise with √T, so the ratio of energies grows by
T / T₁ (*growth*). Then a step's direction u, made of k coordinates with signal energy C (in units of their noise), has
the squared projection C² / (C + k) on the gradient. Silencing the rest pays if that is more than
(C + U)² / (C + U + d), where U is the signal outside. Here C is bounded from below and U from above, so that without
proof nothing is silenced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import gammainc, gammaincc, gammainccinv
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_positive, check_share
from tacit.theory.ratio import RatioChoice

_TAIL = 0.01
"""The share of pure-noise groups that are allowed to stand out."""
_CAUTION = 2.0
"""Every bound is this many standard errors away from its estimate."""
_HIGHEST = 1e6


@dataclass(frozen=True)
class Detection:
    """What a warm-up shows about groups of coordinates, in units of its noise.

    Args:
        standing: Whether each group stands out, one boolean per group.
        members: The number of coordinates of a group.
        inside: Σ of μ²/s² over the coordinates that stand out, at least.
        ratio_outside: The mean of μ²/s² over the others, at most; infinity if there is no telling.
    """

    standing: Tensor
    members: int
    inside: float
    ratio_outside: float

    @property
    def kept(self) -> int:
        """The number of coordinates that stand out."""
        return int(self.standing.sum()) * self.members

    @property
    def coordinates(self) -> int:
        """The number of all coordinates."""
        return self.standing.numel() * self.members


def detect(energies: Tensor, members: int, noise_variance: float) -> Detection:
    """Which groups stand out, and bounds on the signal inside and outside.

    ``energies`` is ‖S‖² of every group of ``members`` coordinates, ``noise_variance`` is s² of one coordinate of S.
    """
    check_count("The number of coordinates of a group", members)
    check_positive("The noise variance", noise_variance)
    if energies.ndim != 1 or energies.numel() == 0 or not bool((energies >= 0).all()):
        raise ArgumentError("The energies must be a flat, non-empty vector of numbers that are not negative.")
    scaled = energies.double().cpu() / noise_variance
    cut = 2 * float(gammainccinv(members / 2, _TAIL))
    standing = scaled > cut
    high, low = scaled[standing], scaled[~standing]
    # What pure noise has where it stands out counts for nothing: a signal at the edge is seen only with luck.
    lucky = members * float(gammaincc(members / 2 + 1, cut / 2)) / _TAIL
    spread = math.sqrt(float((4 * high - 2 * members).sum()))
    inside = max(0.0, float((high - lucky).sum()) - _CAUTION * spread)
    return Detection(standing, members, inside, _highest_ratio(low, cut, members))


def _highest_ratio(energies: Tensor, cut: float, members: int) -> float:
    """The upper bound on λ, from energies that do not exceed ``cut``."""
    if not len(energies):
        return 0.0
    noise = _truncated_mean(cut, members)
    variance = members * (members + 2) * _truncated(cut, members, 2) - noise**2
    error = math.sqrt(max(variance, float(energies.var(correction=0))) / len(energies))
    target = max(float(energies.mean()), noise) + _CAUTION * error
    if (1 + _HIGHEST) * _truncated_mean(cut / (1 + _HIGHEST), members) <= target:
        return math.inf
    low, high = 0.0, math.log1p(_HIGHEST)
    for _ in range(60):
        middle = (low + high) / 2
        scale = math.exp(middle)
        low, high = (
            (middle, high) if scale * _truncated_mean(cut / scale, members) < target else (low, middle)
        )
    return math.expm1(high)


def _truncated_mean(cut: float, members: int) -> float:
    """The mean of a chi-square below ``cut``."""
    return members * _truncated(cut, members, 1)


def _truncated(cut: float, members: int, more: int) -> float:
    """P(χ² of n + 2·more degrees ≤ cut) / P(χ² of n degrees ≤ cut); its limit where both are too small to compute."""
    below = float(gammainc(members / 2, cut / 2))
    if below < 1e-250:
        return math.prod(cut / (members + 2 * place) for place in range(1, more + 1))
    return float(gammainc(members / 2 + more, cut / 2)) / below


def choose_standing(layers: Sequence[Detection], growth: float) -> RatioChoice:
    """The coordinates of the groups that stand out, if silencing the others is shown to help over the whole run.

    ``growth`` is how much larger the signal-to-noise ratio of the whole run is than that of the warm-up. The number
    chosen is that of all ``layers`` together; where nothing stands out, or the proof fails, all stay active.
    """
    check_positive("The growth of the signal", growth)
    dimension = sum(layer.coordinates for layer in layers)
    kept = sum(layer.kept for layer in layers)
    inside = growth * sum(layer.inside for layer in layers)
    outside = growth * sum(
        (layer.coordinates - layer.kept) * layer.ratio_outside
        for layer in layers
        if layer.kept < layer.coordinates
    )
    if not kept or not inside:
        return _dense(dimension, "none is shown to stand out from the noise")
    if kept == dimension:
        return _dense(dimension, "every one stands out from the noise")
    share = outside / (dimension - kept)
    sparse, dense = _projection(inside, kept), _projection(inside + outside, dimension)
    if sparse <= dense:
        return _dense(
            dimension,
            f"the {dimension - kept} that do not stand out from the noise may hold a signal of {share:.2g} of "
            "their noise over the whole run, too much to be silenced",
        )
    return RatioChoice(
        kept,
        dimension,
        f"{kept} of {dimension} coordinates stay active ({kept / dimension:.1%}): they stand out from the noise, and "
        f"the signal of all others is at most {share:.2g} of their noise over the whole run.",
    )


def _projection(signal: float, coordinates: int) -> float:
    """The squared projection on the gradient of a direction with this signal, its noise being 1 per coordinate."""
    return signal if math.isinf(signal) else signal**2 / (signal + coordinates)


def _dense(dimension: int, why: str) -> RatioChoice:
    return RatioChoice(dimension, dimension, f"All {dimension} coordinates stay active: {why}.")


def floor_weight(detection: Detection, growth: float, seen: float = 1.0) -> float:
    """The Wiener factor x / (1 + x) of the groups that do not stand out, with x their highest ratio over the run.

    A weight below it would lose more signal than it saves noise if the groups hold as much together as they may.
    The coordinates of a group count as one that moves together, as in :func:`tacit.theory.signal_share`, and the
    energies may hold only the share ``seen`` of the signal's.

    Args:
        detection: What the warm-up shows.
        growth: How much larger the signal is over the whole run than over the warm-up.
        seen: The share of the signal that the energies hold.
    """
    check_positive("The growth of the signal", growth)
    check_share("The share of the signal that is seen", seen)
    ratio = growth * detection.members * detection.ratio_outside / seen
    return 1.0 if math.isinf(ratio) else ratio / (1 + ratio)
