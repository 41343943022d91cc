"""Numbers in words: what a promise states must hold, so it is never rounded down."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """``value`` with so many digits, never below it."""
    shown = Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(value))
    return f"{float(shown):.{digits}g}"
