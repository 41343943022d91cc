"""Distributions of the privacy loss of the Poisson-subsampled Gaussian mechanism, on a grid, rounded upwards.

A step shows P = (1-q) N(0, s²) + q N(1, s²) if a unit is there, Q = N(0, s²) if not; a replaced one shows P or
its mirror image. The loss log(P/Q) is monotone in the noisy value, so its curve δ(ε) is a difference of two normal
tails. "Connect the dots" (Doroshenko et al. 2022) puts on the grid the distribution whose δ is exact at each grid point
and lies above the true curve between them: it dominates at any width. Losses above the grid count as infinite.

Composition is convolution, by Fourier transform. What a convolution cuts off counts as infinite, too. A transform
rounds: each of its values is off by at most ``_rounding`` times the sum of the magnitudes that go in, n steps make that
n times as much, and the way back spreads it over the cells. This bound is computed and added to every cell, so that δ
stays an upper bound; ``Losses.added`` says how much it is in all. Where that is too much (many steps, small δ), masses
are tilted, each times e^(θ·loss), so that the largest cells are those that decide at δ, and have more digits.

dp-accounting does the same and is the reference in the tests. It loads most of SciPy, which takes longer than a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[Any]  # of doubles; of long doubles where they are tilted
Direction = Literal["remove", "add", "replace"]

ROUNDED = 1e-3
"""The share of delta that the bound on rounding may add before more digits are computed."""

_PER_LEVEL = 3.0
"""Units of rounding per level of a transform: a butterfly adds once and multiplies by a rounded root of unity."""
_PER_POWER = 4.0
"""The same for each factor of a power by repeated squaring, and for the sum that it begins with."""

_CUT = 1e-15
"""Probability that a convolution may cut off at its ends."""
_ORDERS = np.geomspace(0.5, 64.0, 22)
_OF_BEST = 0.5
_TILTS = np.geomspace(0.25, 4096.0, 57)
_SPAN = 300.0  # of ε that are computed together
_LARGE = 40.0  # exp of it drowns every other summand


@dataclass(frozen=True)
class Losses:
    """The loss in one direction: ``masses`` at the multiples ``first``, ``first + 1``, ... of ``width``."""

    width: float
    first: int
    masses: Floats
    infinite: float
    tilt: float = 0.0
    """Masses are kept as masses times e^(tilt · loss - scale)."""
    scale: float = 0.0
    added: float = 0.0
    """What was added to the masses, in all, so that rounding made none of them too small."""
    cut: bool = False
    """Losses below the first one have an unknown probability."""

    def tilted(self, tilt: float) -> Losses:
        """The same loss, kept as masses times e^(tilt · loss), with more digits."""
        exponents = tilt * self.width * (self.first + np.arange(self.masses.size))
        with np.errstate(divide="ignore"):
            logarithms = np.log(self.masses) + exponents
        scale = float(scipy.special.logsumexp(logarithms))
        masses = np.exp((logarithms - scale).astype(np.longdouble))
        return Losses(self.width, self.first, masses, self.infinite, tilt, scale)

    def log_moment(self, order: float) -> float:
        """log of the sum of all masses times e^(order · loss)."""
        with np.errstate(divide="ignore"):
            exponents = np.log(self.masses) + order * self.width * (self.first + np.arange(self.masses.size))
        largest = float(exponents.max())
        return largest + math.log(float(np.exp(exponents - largest).sum()))

    def plain(self) -> Losses:
        """The same loss with its masses as they are; losses below the first one are not known any more."""
        if not self.tilt:
            return self
        losses = (self.first + np.arange(self.masses.size)) * self.width
        with np.errstate(divide="ignore"):
            logarithms = np.log(self.masses).astype(np.float64) + self.scale - self.tilt * losses
        return Losses(self.width, self.first, np.exp(np.minimum(logarithms, 0.0)), self.infinite, cut=True)

    def times(self, count: int) -> Losses:
        """The loss of ``count`` such steps."""
        if count == 1:
            return self
        places = np.arange(self.masses.size, dtype=np.float64)
        weight = float(self.masses.sum())
        mean = float(self.masses @ places) / weight
        low, high = self._window(count, mean, places)
        length = _fast_length(max(high - low + 1, self.masses.size))
        # Powers keep most digits where the phase is small, so the transform is of a distribution around place 0.
        # Its largest mass, next to 1 if sampling is rare, is added after the transform, which rounds the rest.
        middle = round(mean)
        around = np.roll(np.pad(self.masses, (0, length - self.masses.size)), -middle)
        around[0] -= 1
        unit = _rounding(around)
        error = unit * float(np.abs(around).sum()) + _PER_POWER * float(np.finfo(around.dtype).eps)
        composed, spread = _power(1 + np.fft.rfft(around), count, length, error, unit)
        masses = np.roll(composed, count * middle - low)[: high - low + 1]
        masses = np.maximum(masses + spread, 0.0)
        # Tilted, a tail is as much smaller as its masses were raised.
        last = (count * self.first + high) * self.width
        cut = _CUT * math.exp(min(0.0, count * self.scale - self.tilt * last))
        infinite = cut - math.expm1(count * math.log1p(-self.infinite))
        return replace(
            self,
            first=count * self.first + low,
            masses=masses,
            infinite=infinite,
            scale=count * self.scale,
            added=spread * masses.size,
        )

    def _window(self, count: int, mean: float, places: Floats) -> tuple[int, int]:
        """Places outside of which the sum of ``count`` losses has probability at most ``_CUT``: Chernoff bounds."""
        deviation = math.sqrt(float(self.masses @ (places - mean) ** 2)) or 1.0
        low, high = 0, (self.masses.size - 1) * count
        with np.errstate(divide="ignore"):
            logarithms = np.log(self.masses).astype(np.float64)
        # Of many small losses the deviation says which orders bound well, of rare large ones the length of the grid.
        orders = [_ORDERS / (deviation * math.sqrt(count)), _ORDERS / places.size]
        for order in np.concatenate(orders):
            for sign in (-1.0, 1.0):
                exponents = logarithms + sign * order * places
                largest = float(exponents.max())
                moment = largest + math.log(float(np.exp(exponents - largest).sum()))
                bound = sign * (count * moment + math.log(2 / _CUT)) / order
                if sign > 0:
                    high = min(high, math.ceil(bound))
                else:
                    low = max(low, math.floor(bound))
        return low, high

    def and_then(self, other: Losses) -> Losses:
        """The loss of both."""
        size = self.masses.size + other.masses.size - 1
        length = _fast_length(size)
        mine, others = np.fft.rfft(self.masses, length), np.fft.rfft(other.masses, length)
        unit = _rounding(np.empty(length, dtype=self.masses.dtype))
        # Each factor is off by a unit of its total, at most, and their product by another on the way back.
        totals = float(self.masses.sum()), float(other.masses.sum())
        off = unit * (totals[0] * np.abs(others) + totals[1] * np.abs(mine) + np.abs(mine * others))
        spread = 2 * float(off.sum()) / length + unit**2 * totals[0] * totals[1]
        masses = np.maximum(np.fft.irfft(mine * others, length)[:size] + spread, 0.0)
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        added = self.added * totals[1] + other.added * totals[0] + spread * size
        return Losses(
            self.width,
            self.first + other.first,
            masses,
            infinite,
            self.tilt,
            self.scale + other.scale,
            added,
        )

    def delta_at(self, epsilons: Floats) -> Floats:
        """δ at each ε of at least 0, in rising order."""
        found = np.empty(len(epsilons))
        # e^loss has to stay a number, so ε are taken in pieces, each relative to its first.
        for piece in np.split(np.arange(len(epsilons)), _new_pieces(epsilons)):
            if piece.size:
                base = float(epsilons[piece[0]])
                losses, masses = self._above(base)
                above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
                other = np.append(np.cumsum((masses * np.exp(base - losses))[::-1])[::-1], 0.0)
                places = np.searchsorted(losses, epsilons[piece], side="right")
                found[piece] = self.infinite + above[places] - np.exp(epsilons[piece] - base) * other[places]
        return np.where(epsilons < self._known, 1.0, found)

    def epsilon_at(self, delta: float) -> float:
        """The least ε of at least 0 whose δ is at most ``delta``; infinite if there is none."""
        if self.infinite > delta:
            return math.inf
        if self._delta(0.0) <= delta:
            return 0.0
        low, high = (
            0,
            max(1, self.first + self.masses.size - 1),
        )  # multiples of the width: δ is above, and not
        if self._delta(high * self.width) > delta:
            return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._delta(middle * self.width) > delta else (low, middle)
        # Between two grid points δ is linear in e^ε.
        base = low * self.width
        if base < self._known:
            return high * self.width
        losses, masses = self._above(base)
        other = float(masses @ np.exp(base - losses))
        left = self.infinite + float(masses.sum()) - delta
        return (
            min(high * self.width, max(base, base + math.log(left / other)))
            if other > 0 < left
            else high * self.width
        )

    def _above(self, epsilon: float) -> tuple[Floats, Floats]:
        """The losses above ε, and their masses."""
        start = max(0, math.floor(epsilon / self.width) + 1 - self.first)
        places = np.arange(start, self.masses.size, dtype=np.float64)
        return (self.first + places) * self.width, self.masses[start:]

    @property
    def _known(self) -> float:
        """The ε from which on δ is known."""
        return (self.first - 1) * self.width if self.cut else -math.inf

    def _delta(self, epsilon: float) -> float:
        if epsilon < self._known:
            return 1.0
        losses, masses = self._above(epsilon)
        return self.infinite - float(masses @ np.expm1(epsilon - losses))


@dataclass(frozen=True)
class LossDistribution:
    """The loss in every direction of a relation: the larger δ counts."""

    directions: tuple[Losses, ...]

    def tilted(self, tilts: tuple[float, ...]) -> LossDistribution:
        """Tilted, each direction by its own θ."""
        return LossDistribution(
            tuple(one.tilted(tilt) for one, tilt in zip(self.directions, tilts, strict=True))
        )

    def plain(self) -> LossDistribution:
        """Turned back."""
        return LossDistribution(tuple(losses.plain() for losses in self.directions))

    @property
    def added(self) -> float:
        """The most that was added for rounding in a direction."""
        return max(losses.added for losses in self.directions)

    def times(self, count: int) -> LossDistribution:
        """Of ``count`` such steps."""
        return LossDistribution(tuple(losses.times(count) for losses in self.directions))

    def and_then(self, other: LossDistribution) -> LossDistribution:
        """Of both."""
        pairs = zip(self.directions, other.directions, strict=True)
        return LossDistribution(tuple(one.and_then(two) for one, two in pairs))

    def epsilon_at(self, delta: float) -> float:
        """The least ε whose δ is at most ``delta``; infinite if there is none."""
        return max(losses.epsilon_at(delta) for losses in self.directions)

    def delta_at(self, epsilons: Floats) -> Floats:
        """δ at each ε of at least 0."""
        return np.asarray(np.max([losses.delta_at(epsilons) for losses in self.directions], axis=0))


def composed_precisely(parts: Sequence[tuple[LossDistribution, int]], delta: float) -> LossDistribution:
    """The loss of so many steps of each part: an upper bound anywhere, precise around ``delta``."""
    tilts = _tilts(parts, delta)
    first, *others = (one.tilted(tilts).times(count) for one, count in parts)
    return reduce(LossDistribution.and_then, others, first).plain()


def connect_the_dots(width: float, first: int, deltas: Floats) -> Losses:
    """The least loss on the grid whose δ at ``width`` times ``first``, ``first + 1``, ... is ``deltas``."""
    # The curve falls; where rounding made it rise, the larger value holds for both.
    deltas = np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]
    falls = np.diff(deltas)
    masses = np.zeros_like(deltas)
    masses[0] = 1 - deltas[0]
    masses[1:] -= falls * math.exp(width) / math.expm1(width)
    masses[:-1] += falls / math.expm1(width)
    return Losses(width, first, np.maximum(masses, 0.0), float(deltas[-1]))


def gaussian_losses(
    rate: float, noise: float, width: float, log_truncation: float, replaced: bool = False
) -> LossDistribution:
    """The loss of one step; a tail of probability exp(``log_truncation``) counts as infinite."""
    directions: tuple[Direction, ...] = ("replace",) if replaced else ("remove", "add")
    return LossDistribution(
        tuple(_one_direction(way, rate, noise, width, log_truncation) for way in directions)
    )


def _one_direction(way: Direction, rate: float, noise: float, width: float, log_truncation: float) -> Losses:
    reach = far_end(rate, noise, log_truncation)
    ends = np.array([-reach, reach])
    if way == "replace":
        range_ = _log_ratio(ends, rate, noise) - _log_ratio(-ends, rate, noise)
    else:
        range_ = _log_ratio(ends, rate, noise) * (1 if way == "remove" else -1)
    first, last = math.floor(range_.min() / width), math.ceil(range_.max() / width)
    epsilons = np.arange(first, last + 1) * width
    return connect_the_dots(width, first, _deltas(way, epsilons, rate, noise))


def far_end(rate: float, noise: float, log_truncation: float) -> float:
    """A value that a step exceeds with probability exp(``log_truncation``) at most; a rare example rarely does."""
    half = log_truncation - math.log(2)
    absent = -float(scipy.special.ndtri_exp(half)) * noise
    present = -float(scipy.special.ndtri_exp(min(half - math.log(rate), math.log(0.5)))) * noise
    return max(absent, 1 + present)


def _log_ratio(x: Floats, rate: float, noise: float) -> Floats:
    """log(P/Q) at x."""
    exponent = (2 * x - 1) / (2 * noise**2)
    return exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _deltas(way: Direction, epsilons: Floats, rate: float, noise: float) -> Floats:
    """δ(ε) of one step: the probability of the losses above ε, less e^ε times that under the other data."""
    if way == "add":
        # Losses above ε are values below x, where log(P/Q) is -ε.
        x = _where(-epsilons, rate, noise)
        with np.errstate(invalid="ignore"):
            other = np.exp(epsilons + _mixed(x / noise, (x - 1) / noise, rate))
        return np.asarray(np.where(np.isneginf(x), 0.0, scipy.special.ndtr(x / noise) - other))
    if way == "remove":
        x = _where(epsilons, rate, noise)
        other = np.exp(epsilons + scipy.special.log_ndtr(-x / noise))
    else:
        x = _where_replaced(epsilons, rate, noise)
        other = np.exp(epsilons + _mixed(-x / noise, (-1 - x) / noise, rate))
    above = (1 - rate) * scipy.special.ndtr(-x / noise) + rate * scipy.special.ndtr((1 - x) / noise)
    return np.asarray(np.where(np.isneginf(x), -np.expm1(epsilons), above - other))


def _mixed(without: Floats, present: Floats, rate: float) -> Floats:
    """log of (1-q) Φ(without) + q Φ(present)."""
    if rate == 1:
        return np.asarray(scipy.special.log_ndtr(present))
    logarithms = scipy.special.log_ndtr(without), scipy.special.log_ndtr(present)
    return np.asarray(np.logaddexp(math.log1p(-rate) + logarithms[0], math.log(rate) + logarithms[1]))


def _where(losses: Floats, rate: float, noise: float) -> Floats:
    """x where log(P/Q) is each value, minus infinity where it is above that everywhere."""
    if rate == 1:
        return losses * noise**2 + 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.log1p(np.expm1(np.minimum(losses, _LARGE)) / rate)
    # Without a solution the argument is at most 0: the loss never falls below log(1-q).
    small = np.where(losses > math.log1p(-rate), small, -np.inf)
    return np.asarray(np.where(losses > _LARGE, losses - math.log(rate), small) * noise**2 + 0.5)


def _where_replaced(losses: Floats, rate: float, noise: float) -> Floats:
    """x where the loss of P against its mirror image is each value: s² (l/2 + asinh(a sinh(l/2)))."""
    half = losses / 2
    if rate == 1:
        return half * noise**2
    with np.errstate(divide="ignore"):
        log_sinh = np.abs(half) + np.log(-np.expm1(-2 * np.abs(half))) - math.log(2)
    log_term = log_sinh + math.log1p(-rate) - math.log(rate) + 1 / (2 * noise**2)
    asinh = np.logaddexp(0.5 * np.logaddexp(0.0, 2 * log_term), log_term)
    return np.asarray(noise**2 * (half + np.sign(half) * np.where(np.isneginf(log_term), 0.0, asinh)))


def _new_pieces(epsilons: Floats) -> npt.NDArray[np.int64]:
    """Where another piece begins, so that no two ε of a piece are far apart."""
    return np.flatnonzero(np.diff(np.floor(epsilons / _SPAN))) + 1


def _tilts(parts: Sequence[tuple[LossDistribution, int]], delta: float) -> tuple[float, ...]:
    """For each direction a θ that makes those losses likely that decide at ``delta``, of so many steps of each part.

    A share of the θ of the best Chernoff bound on ε: at all of it, rare large losses would be likely, too, and their
    sums take many cells. Any θ gives a bound.
    """
    found = []
    for way in range(len(parts[0][0].directions)):
        steps = [(one.directions[way], count) for one, count in parts]
        # The bound falls, then rises.
        low, high = 0, len(_TILTS) - 1
        while low < high:
            middle = (low + high) // 2
            bounds = [
                (sum(count * losses.log_moment(tilt) for losses, count in steps) - math.log(delta)) / tilt
                for tilt in _TILTS[middle : middle + 2]
            ]
            low, high = (low, middle) if bounds[0] <= bounds[1] else (middle + 1, high)
        found.append(_OF_BEST * float(_TILTS[low]))
    return tuple(found)


def _rounding(values: Floats) -> float:
    """By how much a transform of ``values`` rounds, at most, in parts of the sum of their magnitudes."""
    return _PER_LEVEL * math.log2(max(2, values.size)) * float(np.finfo(values.dtype).eps)


def _power(spectrum: Any, count: int, length: int, error: float, unit: float) -> tuple[Floats, float]:
    """What has this spectrum to the power ``count``, and by how much a value of it is off, at most.

    The values of ``spectrum`` are off by at most ``error``.
    """
    sizes = np.abs(spectrum).astype(np.float64)
    # |(a + e)^n - a^n| is at most n |e| (|a| + |e|)^(n-1), here of values that are off themselves.
    off = (count * error + unit) * float(((sizes + 2 * error) ** (count - 1)).sum())
    if spectrum.dtype == np.complex128:
        powers = spectrum**count
    else:
        powers, left, square = np.ones_like(spectrum), count, spectrum
        while left:
            if left & 1:
                powers = powers * square
            left >>= 1
            if left:
                square = square * square
    return np.fft.irfft(powers, length), 2 * off / length


def _fast_length(least: int) -> int:
    """A length of at least this that the transform is fast at: a power of two, or one and a half of it."""
    power = 1 << max(1, (least - 1).bit_length())
    return 3 * power // 4 if 3 * power // 4 >= least and power >= 4 else power
