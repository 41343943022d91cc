"""An independent accountant, to check the figures of the first one.

It shares no code with the accountant that calibrates plans. The privacy loss of one step of the
Poisson-subsampled Gaussian mechanism has a closed distribution function in both directions; here it is put on
a grid with its exact mean, convolved by Fourier transform, and read off at delta. The grid moves the mean by
nothing and adds a variance of h^2/12 per step to a variance of s^2, so with h = s/32 epsilon is off by about
one part in ten thousand. Where single losses reach so far that this takes too many cells (rare sampling, little noise),
h = s/16, which is off by four times as much. What lies beyond the grid counts as certain disclosure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[np.float64]

TOLERANCE = 5e-4
"""Relative difference of epsilon that the grid can explain; a larger one is a disagreement."""

_CELLS_PER_DEVIATION = (32, 16)
_TAIL_SHARE = 1e-6
_LARGE = 40.0  # exp of it drowns every other summand
_MOST_CELLS = 2**22
_TABLE = 2**15
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e7
_LEAST_RATE, _LEAST_LOSS = 1e-8, 1e-9
_MOST_STEPS = 10**7
_HIGHEST = 700.0  # an exponent beyond would overflow; far below the losses that count
_HOPELESS = 2000.0  # a mean loss that no promise survives
_FURTHER = np.array([0.05, 0.1, 0.2, 0.4, 0.8])
_ORDERS = np.concatenate([-np.geomspace(1e2, 1e-2, 16), np.geomspace(1e-2, 1e2, 16)])


@dataclass(frozen=True)
class _Direction:
    """One direction of the neighbouring relation for one step: the loss as a function of the noisy value x.

    Removing: x ~ P = (1-q) N(0, s^2) + q N(1, s^2), loss log(P/Q). Adding: x ~ Q = N(0, s^2), loss log(Q/P).
    """

    rate: float
    noise: float
    removing: bool

    def loss(self, x: Floats) -> Floats:
        exponent = (2 * x - 1) / (2 * self.noise**2)
        log_ratio = (
            exponent
            if self.rate == 1
            else np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + exponent)
        )
        return log_ratio if self.removing else -log_ratio

    def sides(self, loss: Floats) -> tuple[Floats, Floats]:
        """The probabilities that the loss is at most, and above, each given value; small ones keep their digits."""
        log_ratio = loss if self.removing else -loss
        with np.errstate(divide="ignore", invalid="ignore"):
            # exp(l) - (1 - q), written so that it keeps its digits for small q and small l.
            excess = np.expm1(np.minimum(log_ratio, _LARGE))
            ratio = np.where(
                log_ratio > _LARGE, log_ratio - math.log(self.rate), np.log((excess + self.rate) / self.rate)
            )
        x = np.where(excess > -self.rate, self.noise**2 * ratio + 0.5, -np.inf)
        if not self.removing:
            return scipy.special.ndtr(-x / self.noise), scipy.special.ndtr(x / self.noise)
        below, above = (
            (1 - self.rate) * scipy.special.ndtr(sign * x / self.noise)
            + self.rate * scipy.special.ndtr(sign * (x - 1) / self.noise)
            for sign in (1, -1)
        )
        return below, above

    def support(self, tail: float) -> tuple[float, float]:
        """Losses outside this range have probability at most ``tail`` on either side."""
        reach = -float(scipy.special.ndtri(tail)) * self.noise
        ends = self.loss(np.array([-reach, 1 + reach]))
        return float(ends.min()), float(ends.max())

    def moments(self) -> tuple[float, float]:
        """Mean and variance of the loss."""
        z = np.linspace(-10.0, 10.0, 20_001)
        weights = np.exp(-0.5 * z * z)
        weights /= weights.sum()
        parts = [(1.0, 0.0)] if not self.removing else [(1 - self.rate, 0.0), (self.rate, 1.0)]
        losses = [(share, self.loss(center + self.noise * z)) for share, center in parts]
        mean = sum(share * float(weights @ loss) for share, loss in losses)
        variance = sum(share * float(weights @ (loss - mean) ** 2) for share, loss in losses)
        return mean, variance


@dataclass(frozen=True)
class _Mixture:
    """Several units, or one that was replaced: the same for P = Σ wⱼ N(j, s²), j of ``size`` units drawn.

    Q is N(0, s²) or, ``mirrored``, the mirror image of P. The loss grows with x; where it is a given value is read off
    a fine table.
    """

    rate: float
    noise: float
    size: int
    removing: bool
    mirrored: bool = False

    @property
    def _weights(self) -> Floats:
        return np.asarray(scipy.stats.binom.pmf(np.arange(self.size + 1), self.size, self.rate))

    def _log_ratio(self, x: Floats) -> Floats:
        j = np.arange(self.size + 1)

        def over_silence(at: Floats) -> Floats:
            with np.errstate(divide="ignore"):
                weights = np.log(self._weights)
            return np.asarray(
                scipy.special.logsumexp(
                    weights + (2 * at[..., None] * j - j * j) / (2 * self.noise**2), axis=-1
                )
            )

        return over_silence(x) - over_silence(-x) if self.mirrored else over_silence(x)

    def loss(self, x: Floats) -> Floats:
        return self._log_ratio(x) if self.removing else -self._log_ratio(x)

    def sides(self, loss: Floats) -> tuple[Floats, Floats]:
        """The probabilities that the loss is at most, and above, each given value; small ones keep their digits."""
        reach = 40 * self.noise
        table = np.linspace(-reach - (self.size if self.mirrored else 0), self.size + reach, _TABLE)
        known = self._log_ratio(table)
        x = np.interp(loss if self.removing else -loss, known, table, left=-np.inf, right=np.inf)
        if not self.removing:
            return scipy.special.ndtr(-x / self.noise), scipy.special.ndtr(x / self.noise)
        standard = (x[:, None] - np.arange(self.size + 1)) / self.noise
        return scipy.special.ndtr(standard) @ self._weights, scipy.special.ndtr(-standard) @ self._weights

    def support(self, tail: float) -> tuple[float, float]:
        """Losses outside this range have probability at most ``tail`` on either side."""
        reach = -float(scipy.special.ndtri(tail)) * self.noise
        ends = self.loss(np.array([-reach, self.size + reach]))
        return float(ends.min()), float(ends.max())

    def moments(self) -> tuple[float, float]:
        """Mean and variance of the loss."""
        z = np.linspace(-10.0, 10.0, 4001)
        normal = np.exp(-0.5 * z * z)
        normal /= normal.sum()
        shares = self._weights if self.removing else np.eye(1, self.size + 1)[0]
        losses = [(share, self.loss(j + self.noise * z)) for j, share in enumerate(shares) if share > 0]
        mean = sum(share * float(normal @ loss) for share, loss in losses)
        variance = sum(share * float(normal @ (loss - mean) ** 2) for share, loss in losses)
        return mean, variance


@dataclass(frozen=True)
class _Gridded:
    """A loss on the grid ``shift + width * (start + 0, 1, ...)``, with the mass that lies beyond its end."""

    probabilities: Floats
    start: int
    shift: float
    beyond: float


def _gridded(direction: _Direction | _Mixture, width: float, tail: float) -> _Gridded:
    low, high = direction.support(tail)
    start, stop = math.floor(low / width), math.ceil(high / width) + 1
    edges = (np.arange(start, stop + 1, dtype=np.float64) - 0.5) * width
    below, above = direction.sides(edges)
    # What lies below the grid is put on its start.
    below[0], above[0] = 0.0, 1.0
    # Differences of numbers near one would lose what a million steps add up to.
    probabilities = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    mean, _ = direction.moments()
    on_grid = float(probabilities @ (np.arange(start, stop) * width)) / float(probabilities.sum())
    return _Gridded(probabilities, start, mean - on_grid, float(above[-1]))


@dataclass(frozen=True)
class _Window:
    """A range outside of which the sum of all losses has probability at most a given tail, and how to tilt it.

    ``tilt`` is the θ of the best Chernoff bound on the losses that count at δ.
    """

    low: float
    high: float
    tilt: float


def _window(parts: list[tuple[_Gridded, int]], width: float, tail: float, delta: float) -> _Window:
    """By Chernoff bounds; the range also holds all but that tail of the tilted distribution."""
    deviation = width * _CELLS_PER_DEVIATION[0] * math.sqrt(sum(count for _, count in parts))

    def cumulants(orders: Floats) -> Floats:
        totals = np.zeros(len(orders))
        for part, count in parts:
            losses = width * (part.start + np.arange(part.probabilities.size))
            for place, order in enumerate(orders):
                totals[place] += count * float(scipy.special.logsumexp(order * losses, b=part.probabilities))
        return totals

    orders = _ORDERS / deviation
    totals = cumulants(orders)
    bounds = (totals - math.log(tail / 2)) / orders
    low, high = float(bounds[orders < 0].max()), float(bounds[orders > 0].min())
    rising = orders > 0
    best = int(np.argmin((totals[rising] - math.log(delta)) / orders[rising]))
    tilt, at_tilt = float(orders[rising][best]), float(totals[rising][best])
    further = tilt * _FURTHER
    beyond = (cumulants(tilt + further) - at_tilt - math.log(tail / 2)) / further
    return _Window(low, max(high, float(beyond.min())), tilt)


def _sum(
    parts: list[tuple[_Gridded, int]], width: float, tail: float, delta: float
) -> tuple[Floats, Floats, float] | None:
    """The distribution of the sum of all losses: values, probabilities, and the mass taken as infinite.

    The transform rounds all cells alike, by the size of the largest, and over a million steps that adds up to more
    than a small δ. So losses are also tilted, each probability times exp(θ·loss), and the sum is turned back: then the
    largest cells are those that decide at δ. Every cell is taken from the transform that rounds it less.
    """
    window = _window(parts, width, tail, delta)
    first = math.floor(window.low / width)
    longest = max(part.probabilities.size for part, _ in parts)
    cells = max(math.ceil(window.high / width) - first + 1, longest)
    cells = 1 << (cells - 1).bit_length()
    if cells > 2 * _MOST_CELLS:
        return None
    losses = (first + np.arange(cells, dtype=np.float64)) * width
    plain, _ = _convolved(parts, width, 0.0, first, cells)
    tilted, scale = _convolved(parts, width, window.tilt, first, cells)
    turned = np.exp(np.minimum(scale - window.tilt * losses, _HIGHEST))
    probabilities = np.where(tilted.max() * turned < plain.max(), tilted * turned, plain)
    shift = sum(count * part.shift for part, count in parts)
    beyond = tail + sum(count * part.beyond for part, count in parts)
    return losses + shift, probabilities, beyond


def _convolved(
    parts: list[tuple[_Gridded, int]], width: float, tilt: float, first: int, cells: int
) -> tuple[Floats, float]:
    """The tilted distribution of the sum of all losses on cells from ``first`` on, and the log of what it lacks."""
    spectrum = np.ones(cells // 2 + 1, dtype=np.complex128)
    start, scale = 0, 0.0
    for part, count in parts:
        exponents = tilt * width * (part.start + np.arange(part.probabilities.size))
        total = float(scipy.special.logsumexp(exponents, b=part.probabilities))
        spectrum = spectrum * np.fft.rfft(part.probabilities * np.exp(exponents - total), cells) ** count
        start += count * part.start
        scale += count * total
    return np.maximum(np.roll(np.fft.irfft(spectrum, cells), start - first), 0.0), scale


Directions = tuple[tuple[_Direction | _Mixture, int], ...]


def _losses_in(directions: Directions, delta: float) -> tuple[Floats, Floats, float] | None:
    """The distribution of the sum of all losses, for a δ of this size; None where it cannot be computed."""
    steps = sum(count for _, count in directions)
    if not sum(count * direction.moments()[0] for direction, count in directions) < _HOPELESS:
        return None
    variance = sum(count * direction.moments()[1] for direction, count in directions) / steps
    tail = _TAIL_SHARE * delta
    longest = max(np.ptp(direction.support(tail / steps)) for direction, _ in directions)
    for cells in _CELLS_PER_DEVIATION:
        width = math.sqrt(variance) / cells
        if longest < _MOST_CELLS * width:
            parts = [(_gridded(direction, width, tail / steps), count) for direction, count in directions]
            found = _sum(parts, width, tail, delta)
            if found is not None:
                return found
    return None


def _delta_at(epsilon: float, losses: tuple[Floats, Floats, float]) -> float:
    values, probabilities, beyond = losses
    above = values > epsilon
    return beyond + float(-np.expm1(epsilon - values[above]) @ probabilities[above])


@lru_cache(maxsize=256)  # several claims of one certificate ask about the same releases
def _epsilon_in(directions: Directions, delta: float) -> float:
    losses = _losses_in(directions, delta)
    if losses is None:
        return math.inf
    values = losses[0]

    def excess(epsilon: float) -> float:
        return _delta_at(epsilon, losses) - delta

    if excess(0.0) <= 0:
        return 0.0
    highest = float(values[-1])
    return (
        math.inf
        if excess(highest) > 0
        else float(scipy.optimize.brentq(excess, 0.0, highest, xtol=1e-12, rtol=1e-10))
    )


def recount(
    counts: Mapping[tuple[float, float], int], delta: float, *, replaced: bool = False, size: int = 1
) -> float:
    """Epsilon at ``delta`` of so many releases per (sampling rate, noise multiplier).

    For neighbours that differ by one unit more or less, by one ``replaced`` unit, or by ``size`` units more or less:
    the larger of the two directions. Within TOLERANCE of the true value. What cannot be computed (next to no noise,
    sampling next to never, endless steps) is rounded up, to infinity at last.
    """
    if not counts:
        return 0.0
    if any(noise < _LEAST_NOISE for _, noise in counts) or sum(counts.values()) > _MOST_STEPS:
        return math.inf
    with np.errstate(over="ignore"):
        return max(_epsilon_in(way, delta) for way in _ways(counts, replaced, size))


def recount_delta(
    counts: Mapping[tuple[float, float], int],
    epsilons: Sequence[float],
    least: float,
    *,
    replaced: bool = False,
) -> list[float]:
    """δ at each of ``epsilons`` of so many releases, 1 where it cannot be computed; for a δ of ``least`` and more."""
    found = np.zeros(len(epsilons))
    with np.errstate(over="ignore"):
        for way in _ways(counts, replaced, 1) if counts and len(epsilons) else ():
            losses = _losses_in(way, least)
            deltas = [1.0 if losses is None else _delta_at(epsilon, losses) for epsilon in epsilons]
            found = np.maximum(found, deltas)
    return found.tolist()


def _ways(counts: Mapping[tuple[float, float], int], replaced: bool, size: int) -> Iterator[Directions]:
    """The directions of the relation, each over all releases; replacing is the same in both."""
    for removing in (True,) if replaced else (True, False):
        directions: list[tuple[_Direction | _Mixture, int]] = []
        for (rate, noise), count in counts.items():
            rate = max(rate, _LEAST_RATE)
            noise = min(noise, _MOST_NOISE, rate / _LEAST_LOSS)
            if replaced or size > 1:
                directions.append((_Mixture(rate, noise, size, removing, mirrored=replaced), count))
            else:
                directions.append((_Direction(rate, noise, removing), count))
        yield tuple(directions)
