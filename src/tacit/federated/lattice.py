"""Exact ratios and the lattice of possible replies.

Whole numbers whose ratio is provably at most e^ε.

A mechanism here gives each of its outputs a whole number of *tickets* and draws one ticket uniformly. The
number of all tickets does not depend on the data, so the mechanism is ε-LDP exactly if the most tickets that
any input gives an output are at most e^ε times the least. Two facts make that a theorem about the program:
whole numbers have no rounding, and e^ε is bounded from below before it is used.

The bound: ``Decimal.exp`` is correctly rounded, so at 60 digits its relative error is below 10⁻⁵⁹; taking
10⁻⁵⁰ off it leaves a rational number below e^ε.

Lattices of outputs, and who owns which ticket: the whole-number hearts of the value perturbations.

An output is a whole number of steps. Every method here is exact in whole numbers once the tickets of an input or
the centre of its plateau is known; these two are computed in floating point and then clipped to their range, so
an error there can cost accuracy, never privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError, is_number

# Tickets are drawn as 64-bit numbers.
MOST_TICKETS = 2**62

_DIGITS = Context(prec=60)
_MARGIN = Decimal(10) ** -50


def check_epsilon(name: str, value: float, least: float, most: float) -> float:
    """Return ``value`` if it is a number in [least, most]."""
    if not is_number(value) or not least <= value <= most:
        raise ArgumentError(f"{name} must lie in [{least:g}, {most:g}], got {value!r}.")
    return value


@lru_cache(4096)
def most_within(epsilon: float, low: int) -> int:
    """Return a whole number ``high`` with high / low ≤ e^ε: the largest, but for a margin of 10⁻⁴⁹."""
    growth = _DIGITS.exp(Decimal(epsilon))
    below = _DIGITS.multiply(growth, _DIGITS.subtract(1, _MARGIN))
    return int(_DIGITS.multiply(below, Decimal(low)).to_integral_value(ROUND_FLOOR))


def unit_tickets(outputs: float) -> int:
    """Return the largest power of two that can be given ``outputs`` times within `MOST_TICKETS`."""
    return 1 << (math.floor(math.log2(MOST_TICKETS / outputs)) - 1)


@lru_cache(4096)
def log_ratio(high: int, low: int) -> float:
    """Return ln(high / low), rounded up: never below the true value."""
    if not low:
        return math.inf
    if high == low:
        return 0.0
    above = _DIGITS.add(_DIGITS.ln(_DIGITS.divide(Decimal(high), Decimal(low))), _MARGIN)
    nearest = float(above)
    return nearest if Decimal(nearest) >= above else math.nextafter(nearest, math.inf)


Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

STEPS_PER_UNIT = 2**20
STEP = 1 / STEPS_PER_UNIT


@dataclass(frozen=True)
class TwoPoints:
    """The lattice form of Duchi's mechanism: ``reach`` or −``reach``, with ``low`` to ``high`` tickets each.

    Of the low + high tickets ``reach`` has t(v), a whole number in [low, high], and −``reach`` has the rest,
    which is in [low, high] as well: every ratio is at most high / low.
    """

    low: int
    high: int
    reach: int

    @classmethod
    def within(cls, epsilon: float) -> TwoPoints:
        """Return the two points with high / low ≤ e^ε; their reach is the published one, to the nearest step."""
        # 2⁵² tickets: t(v) is computed in floating point, where more would not count.
        low = unit_tickets(math.exp(epsilon)) * 2**52 // MOST_TICKETS
        high = most_within(epsilon, low)
        return cls(low, high, round(Fraction(STEPS_PER_UNIT * (high + low), high - low)))

    @property
    def total(self) -> int:
        """The number of tickets."""
        return self.low + self.high

    def tickets(self, values: Floats) -> Steps:
        """Return the tickets of ``reach`` for values in [−1, 1]."""
        wanted = self.low + np.rint((1 + values) / 2 * (self.high - self.low)).astype(np.int64)
        return np.clip(wanted, self.low, self.high)

    def place(self, drawn: Steps, tickets: Steps) -> Steps:
        """Return the output that owns each drawn ticket."""
        return np.where(drawn < tickets, self.reach, -self.reach)


@dataclass(frozen=True)
class Plateau:
    """The lattice form of the piecewise mechanism: all steps from −``reach`` to ``reach`` are possible.

    The 2 ``half`` + 1 steps around a centre have ``high`` tickets each, all others ``low``. The centre
    follows the value and keeps the whole plateau inside, so the number of tickets is the same for every
    value, and every ratio is 1 or high / low.
    """

    low: int
    high: int
    half: int
    reach: int

    @classmethod
    def within(cls, epsilon: float) -> Plateau:
        """Return the published plateau with high / low ≤ e^ε and the least reach that holds it at values of ±1."""
        growth = math.expm1(epsilon / 2)
        half = round(STEPS_PER_UNIT / growth)
        width = 2 * half + 1
        low = unit_tickets(width * math.exp(epsilon) + 2 * STEPS_PER_UNIT * (1 + 2 / growth))
        high = most_within(epsilon, low)
        # At a value of 1 the centre is ``shift`` units away, and must not be further than reach - half.
        slope = (high - low) * width
        room = slope * (half + STEPS_PER_UNIT) + low * STEPS_PER_UNIT
        return cls(low, high, half, -(-room // (slope - 2 * low * STEPS_PER_UNIT)))

    @property
    def width(self) -> int:
        """How many steps the plateau has."""
        return 2 * self.half + 1

    @property
    def total(self) -> int:
        """The number of tickets."""
        return self.high * self.width + self.low * (2 * self.reach + 1 - self.width)

    @property
    def shift(self) -> Fraction:
        """How many steps the centre moves per step of the value, so that the mean output is the value."""
        return Fraction(self.total, (self.high - self.low) * self.width)

    def centers(self, values: Floats) -> Steps:
        """Return the centre of the plateau for values in [−1, 1]."""
        wanted = np.rint(values * float(self.shift * STEPS_PER_UNIT)).astype(np.int64)
        return np.clip(wanted, self.half - self.reach, self.reach - self.half)

    def place(self, drawn: Steps, centers: Steps) -> Steps:
        """Return the output that owns each drawn ticket."""
        left = centers - self.half
        on_plateau = self.high * self.width
        # Off the plateau: steps in order, with the plateau cut out.
        off = (drawn - on_plateau) // self.low - self.reach
        off = np.where(off < left, off, off + self.width)
        return np.where(drawn < on_plateau, left + drawn // self.high, off)
