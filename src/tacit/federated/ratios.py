"""Whole numbers whose ratio is provably at most e^ε.

A mechanism here gives each of its outputs a whole number of *tickets* and draws one ticket uniformly. The
number of all tickets does not depend on the data, so the mechanism is ε-LDP exactly if the most tickets that
any input gives an output are at most e^ε times the least. Two facts make that a theorem about the program:
whole numbers have no rounding, and e^ε is bounded from below before it is used.

The bound: ``Decimal.exp`` is correctly rounded, so at 60 digits its relative error is below 10⁻⁵⁹; taking
10⁻⁵⁰ off it leaves a rational number below e^ε.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache

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
