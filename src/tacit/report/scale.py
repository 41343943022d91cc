"""Axes: where values lie on paper, where ticks stand, and how figures are written."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` … ``high`` to ``start`` … ``end`` on paper, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; one beyond the scale lies at its end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values within the scale, at most ``most`` of them."""
        return _decades(self.low, self.high, most) if self.log else ticks(self.low, self.high, most)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between ``low`` and ``high``, at most ``most`` of them."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = math.floor(math.log10(span / most)) - 1
    while True:
        for factor in (1, 2, 5):
            step = factor * 10.0**power
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first + 1 <= most:
                digits = max(0, -power)
                return [round(n * step, digits) for n in range(first, last + 1)]
        power += 1


def _decades(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first + 1) // most))
    return [10.0**power for power in range(last, first - 1, -every)][::-1]


def padded(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """The range with some air above and below; a range of no width gets some."""
    span = high - low
    air = span * share if span > 0 else max(abs(high), 1.0) * 0.05
    return low - air, high + air


def number(value: float, digits: int = 4) -> str:
    """A figure for people: so many significant digits, thousands by comma, an infinite one as ∞."""
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        raised = "10" + str(int(power)).translate(_RAISED)
        return raised if mantissa == "1" else f"{mantissa.replace('-', '−')}\u00a0·\u00a0{raised}"
    if float(value).is_integer():
        return f"{int(value):,}".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}".rstrip("0").rstrip(".").replace("-", "−")


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def share(value: float, digits: int = 1) -> str:
    """A share as a percentage."""
    return "not defined" if math.isnan(value) else f"{100 * value:.{digits}f} %".replace("-", "−")
