"""δ(ε) of composed subsampled Gaussians by an integral along a vertical line, with a bound on the error.

It shares nothing with the accountants: no grid of losses, no truncated loss, no Fourier transform of masses.
With K(z) = Σ steps · log E[e^{zL}] of the losses L of single steps, and any c > 0,

    δ(ε) = 1/2π ∫ exp(K(z) - zε) / (z (z+1)) dt,   z = c + it,

since 1 / (z (z+1)) is the Laplace transform of 1 - e^-y. The integral is a sum at spacing h. By Poisson's summation
formula, that sum is Σ_k δ(ε + kD) e^{ckD} with D = 2π/h and δ of any real argument in [0, 1], so all that it adds is
positive and bounded: e^{-cD} + e^{-2cD} + ... from k < 0, and Chernoff's bound at a larger c from k > 0. What is left
out beyond the last t is bounded by the largest |e^K| from there on over t; that one is looked at, not proven.

Moments are E[(P/Q)^w] over Q = N(0, s²): w = 1 + z where an example is removed (losses log(P/Q) under P), w = -z where
it is added. They are a trapezoid rule in x over a function that is analytic within π s² of the real line. Summed
is (P/Q)^w - 1 - w (P/Q - 1), whose last term has mean 0, from differences that keep their digits: so what n steps
add up to is off by about n q² · 2^-53, not n · 2^-53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[np.float64]
Complexes = npt.NDArray[np.complex128]

_ROUNDING = 2.0**-50


@dataclass(frozen=True)
class Step:
    """One step: the rate of Poisson sampling and the noise multiplier."""

    rate: float
    noise: float

    def log_moments(self, w: Complexes) -> Complexes:
        """log E[(P/Q)^w] over Q."""
        if self.rate == 1:
            return np.asarray(w * (w - 1) / (2 * self.noise**2))
        return np.concatenate([self._logs(part) for part in np.array_split(w, max(1, len(w) // 256))])

    def _logs(self, w: Complexes) -> Complexes:
        # The phase turns by at most |Im w| / s per unit of u; the rest of the function has died 40 beyond.
        fastest = float(np.abs(w.imag).max()) / self.noise
        spacing = min(1 / 24, self.noise / 12, 2 * math.pi / (fastest + 40))
        most = max(0.0, float(w.real.max()))
        u = np.arange(-14.0, most / self.noise + 14.0, spacing)
        exponent = u / self.noise - 1 / (2 * self.noise**2)
        with np.errstate(over="ignore"):
            excess = self.rate * np.expm1(exponent)
            loss = np.where(
                exponent > 30,
                np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + exponent),
                np.log1p(excess),
            )
        log_weight = -0.5 * u * u + math.log(spacing / math.sqrt(2 * math.pi))
        found = np.empty(len(w), dtype=np.complex128)
        for piece in np.array_split(np.arange(len(w)), max(1, len(w) * len(u) // 400_000)):
            found[piece] = self._moments(w[piece, None], excess, loss, log_weight)
        # found is E[(P/Q)^w] - 1.
        return np.asarray(_log1p(found))

    @staticmethod
    def _moments(w: Complexes, excess: Floats, loss: Floats, log_weight: Floats) -> Complexes:
        y = w * loss
        weight = np.exp(log_weight)
        small = np.abs(loss) < 1e-3
        # The series of e^y - 1 - y and of log(1 + e) - e where both are small, closed forms where not.
        near = _exp_less_line(y[:, small]) + w * _log_less_line(excess[small])
        total: Complexes = near @ weight[small]
        far = ~small
        full = np.exp(y[:, far] + log_weight[far])
        with np.errstate(over="ignore"):
            line = weight[far] + w * np.exp(log_weight[far] + np.log(np.abs(excess[far]))) * np.sign(
                excess[far]
            )
        return np.asarray(total + (full - line).sum(axis=1))


def _exp_less_line(y: Complexes) -> Complexes:
    """e^y - 1 - y."""
    series = y * y * (0.5 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * (1 / 720 + y / 5040)))))
    a, b = y.real, y.imag
    real = np.expm1(a) - a - 2 * np.exp(a) * np.sin(b / 2) ** 2
    imaginary = np.exp(a) * np.sin(b) - b
    return np.asarray(np.where(np.abs(y) < 0.05, series, real + 1j * imaginary))


def _log_less_line(e: Floats) -> Floats:
    """log(1 + e) - e for |e| of at most about 1e-3."""
    return np.asarray(-e * e * (1 / 2 - e * (1 / 3 - e * (1 / 4 - e * (1 / 5 - e * (1 / 6 - e / 7))))))


def _log1p(v: Complexes) -> Complexes:
    """log(1 + v), with the digits of a small v."""
    a, b = v.real, v.imag
    return np.asarray(0.5 * np.log1p(a * (2 + a) + b * b) + 1j * np.arctan2(b, 1 + a))


@dataclass(frozen=True)
class Line:
    """K along c + it at t = 0, h, 2h, ...: what δ near one ε needs."""

    c: float
    h: float
    t: Floats
    k: Complexes
    further: float  # K at 2c or so, for Chernoff's bound
    further_c: float
    beyond: float  # |e^(K - K(c))| after the last t
    rounding: float  # of K

    def delta(self, epsilon: float) -> tuple[float, float]:
        """δ(ε), and a bound on its error."""
        z = self.c + 1j * self.t
        terms = np.exp(self.k - z * epsilon) / (z * (z + 1))
        value = self.h / math.pi * (float(terms.real.sum()) - 0.5 * float(terms[0].real))
        size = self.h / math.pi * float(np.abs(terms).sum())
        period = 2 * math.pi / self.h
        below = math.exp(-self.c * period) / -math.expm1(-self.c * period)
        gap = self.further_c - self.c
        above = math.exp(self.further - self.further_c * epsilon - gap * period) / -math.expm1(-gap * period)
        front = math.exp(float(self.k[0].real) - self.c * epsilon)
        left = front * self.beyond / (math.pi * float(self.t[-1]))
        return value, below + above + left + size * (self.rounding + _ROUNDING)


def _moments(spends: dict[Step, int], removing: bool, z: Complexes) -> Complexes:
    total = np.zeros(len(z), dtype=np.complex128)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite moments are of no use, and are not used
        for step, count in spends.items():
            total += count * step.log_moments(1 + z if removing else -z)
    return total


def line(spends: dict[Step, int], removing: bool, delta: float, accuracy: float = 1e-10) -> Line:
    """A line along which δ near ``delta`` is known to about ``accuracy`` of it."""

    def at(c: float) -> float:
        return float(_moments(spends, removing, np.array([c + 0j]))[0].real)

    # δ(ε) ≤ exp(K(c) - cε) (for some c, less than that): the c whose bound on ε is least.
    cs = np.geomspace(1e-2, 1e5, 141)
    bounds = np.full(len(cs), np.inf)
    for i, c in enumerate(cs):
        k = at(float(c))
        if not math.isfinite(k) or k > 600:
            break
        bounds[i] = (k - math.log(delta)) / c
    best = int(np.argmin(bounds))
    if best + 1 < len(cs) and not math.isfinite(bounds[best + 1]):
        raise ArithmeticError("The moments that ε needs are too large for double precision.")
    c, epsilon = float(cs[best]), max(0.0, float(bounds[best]))
    k_c = at(c)
    # The far side wants another c' > c; the period is long enough for both sides.
    further_c, further = min(
        ((f * c, at(f * c)) for f in (1.1, 1.25, 1.5, 2.0, 3.0)),
        key=lambda found: (found[1] - math.log(delta * accuracy / 4)) / (found[0] - c),
    )
    period = (math.log(1 / delta) + math.log(4 / accuracy)) / c
    lowest = max(0.0, epsilon - 0.5 * epsilon)
    needed = (further - further_c * lowest - math.log(delta * accuracy / 4)) / (further_c - c)
    h = 2 * math.pi / max(period, needed)
    # The end: where the tilted characteristic function has died, on a coarse look over the next three octaves.
    looks = h * np.unique(np.round(2.0 ** np.arange(0, 24, 0.125)))
    front = k_c - c * epsilon * 0.8
    sizes, small = np.empty(0), np.empty(0, dtype=np.int64)
    for piece in np.array_split(looks, 12):
        more = _moments(spends, removing, c + 1j * piece).real - k_c
        sizes = np.append(sizes, more)
        after = np.array([sizes[i : i + 24].max() for i in range(max(0, len(sizes) - 23))])
        small = np.flatnonzero(
            after + front - np.log(math.pi * looks[: len(after)]) < math.log(delta * accuracy / 4)
        )
        if small.size:
            break
    if not small.size:
        raise ArithmeticError("The line has no end within reach.")
    end = looks[small[0]]
    t = np.arange(0.0, end + h, h)
    if len(t) > 2_000_000:
        raise ArithmeticError(f"The line has {len(t)} points.")
    k = _moments(spends, removing, c + 1j * t)
    size = sum(n * min(1.0, s.rate) * (1 + c) for s, n in spends.items())
    return Line(c, h, t, k, further, further_c, math.exp(float(after[small[0]])), 2.0**-50 * size)


def epsilon(spends: dict[Step, int], delta: float, removing: bool) -> tuple[float, float]:
    """ε at ``delta`` in one direction, and a bound on its error; (0, 0) where δ(0) is below."""
    along = line(spends, removing, delta)
    low, high = 0.0, 1.0
    if along.delta(0.0)[0] <= delta:
        return 0.0, 0.0
    while along.delta(high)[0] > delta:
        high *= 2
    found = float(
        scipy.optimize.brentq(lambda e: along.delta(e)[0] - delta, low, high, xtol=1e-13, rtol=1e-12)
    )
    _, error = along.delta(found)
    step = 1e-4 * found
    slope = (along.delta(found - step)[0] - along.delta(found + step)[0]) / (2 * step)
    return found, error / slope
