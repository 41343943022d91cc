"""The least noise that keeps a promise: root finding on the logarithm of the noise multiplier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tacit.errors import ArgumentError
from tacit.plan.accountants import epsilon_of
from tacit.plan.pld import COARSE, pld_epsilon
from tacit.plan.spends import Spend, merge

SLACK = 3e-3
"""A calibrated epsilon lies in [(1 - SLACK) * target, target], as computed by the plan's accountant."""

# Ranges of epsilon / target that end each stage. Only the last one is a promise; the others may overshoot.
_PROMISED = (1 - SLACK, 1.0)
_STEERED = (1 - SLACK, 1 + SLACK)
_GUESSED = (0.95, 1.05)
_LONGEST_STEP = 1.5
_LARGEST_NOISE = 1e7
_SMALLEST_NOISE = 1e-2

SpendsAt = Callable[[float], Sequence[Spend]]


def _search(
    epsilon_at: Callable[[float], float],
    target: float,
    start: float,
    accepted: tuple[float, float],
    slope: float,
) -> tuple[float, float]:
    """Find x with epsilon_at(x) / target in ``accepted``; return it and the last log-log slope.

    Secant steps on log x against log epsilon, kept inside the bracket seen so far.
    """
    least, most = accepted[0] * target, accepted[1] * target
    aim = math.log((least + most) / 2)
    low, high = -math.inf, math.inf
    previous: tuple[float, float] | None = None
    x = math.log(start)
    above = 0
    for _ in range(60):
        epsilon = epsilon_at(math.exp(x))
        if least <= epsilon <= most:
            return math.exp(x), slope
        low, high = (max(low, x), high) if epsilon > most else (low, min(high, x))
        if 0 < epsilon < math.inf:
            y = math.log(epsilon)
            if previous is not None and abs(x - previous[0]) > 1e-12:
                measured = (y - previous[1]) / (x - previous[0])
                slope = measured if measured < -0.05 else slope
            previous = (x, y)
            step = (aim - y) / slope
        else:
            step = _LONGEST_STEP if epsilon > most else -_LONGEST_STEP
        # After a loss most of the target is spent already and epsilon hardly falls: stride out until it does.
        above = above + 1 if epsilon > most and math.isinf(high) else 0
        if above > 3:
            step = max(step, 0.1 * 2 ** (above - 3))
        proposal = x + max(-_LONGEST_STEP, min(_LONGEST_STEP, step))
        x = proposal if low < proposal < high else (low + high) / 2
        if not math.log(_SMALLEST_NOISE) < x < math.log(_LARGEST_NOISE):
            break
    raise ArgumentError(
        f"No noise multiplier between {_SMALLEST_NOISE:g} and {_LARGEST_NOISE:g} reaches "
        f"epsilon = {target:g}; change epsilon, the number of epochs or the batch size."
    )


def least_noise(spends_at: SpendsAt, target: float, delta: float, accountant: str, start: float) -> float:
    """The least x, up to SLACK, with epsilon of ``spends_at(x)`` at most ``target``.

    ``spends_at`` maps a positive number (a noise multiplier, or a factor on several) to the spends of the
    whole composition; its epsilon must fall as x grows. The returned x has been checked with ``accountant``
    itself: its epsilon is at most ``target``, never above it by a search tolerance.
    """
    if accountant != "pld":
        return _search(
            lambda x: epsilon_of(spends_at(x), delta, accountant), target, start, _PROMISED, slope=-1.0
        )[0]
    slope = -1.0
    # Renyi is quick and close. Where it exceeds the target whatever the noise, it has no root to start from.
    if epsilon_of(spends_at(_LARGEST_NOISE), delta, "rdp") < 0.9 * target:
        start, slope = _search(
            lambda x: epsilon_of(spends_at(x), delta, "rdp"), target, start, _GUESSED, slope
        )
    start, slope = _search(
        lambda x: pld_epsilon(merge(spends_at(x)), delta, COARSE), target, start, _STEERED, slope
    )
    return _search(lambda x: epsilon_of(spends_at(x), delta), target, start, _PROMISED, slope)[0]


def noise_start(sampling_rate: float, steps: int, epsilon: float, delta: float) -> float:
    """A starting point for the search: the noise of a plain Gaussian with the same total signal."""
    return 0.5 + sampling_rate * math.sqrt(steps) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
