"""Epsilon of a composition of spends, by the accountant of one's choice.

``pld``          privacy loss distributions (dp-accounting), an upper bound within 0.1 % of the true value
``rdp``          Renyi differential privacy, exact divergences with the improved conversion of dp-accounting
``theorem-4.1``  the formula printed in the TP-TopK paper: Renyi with the conversion of Mironov (2017)

All three hold for add-or-remove-one neighbours and Poisson sampling.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from tacit.errors import ArgumentError
from tacit.plan.pld import pld_epsilon
from tacit.plan.renyi import ORDERS, renyi_divergences, theorem_4_1_epsilon
from tacit.plan.spends import Spend, merge

RELATION = "add-or-remove-one"
"""The neighbouring relation of every plan: data sets that differ by one added or removed example."""

LEAST_DELTA = 1e-10
"""Below this the rounding errors of the Fourier transforms are no longer small beside delta."""

LEAST_NOISE = 1e-2
MOST_NOISE = 1e7
LEAST_RATE = 1e-8
LEAST_LOSS = 1e-9
MOST_STEPS = 10**7
"""Where the accountants compute; outside of it they round up."""

HOPELESS = 2000.0
"""Above this the Renyi bound is good enough: distributions of such losses fill any memory, and promise nothing."""


def _in_range(spend: Spend) -> Spend:
    """A spend that costs at least as much, with figures that arithmetic can hold: more sampling, less noise."""
    rate = max(spend.sampling_rate, LEAST_RATE)
    # A step's privacy loss is about rate / noise; beside 1 it must keep its digits.
    noise = min(float(spend.noise_multiplier), MOST_NOISE, rate / LEAST_LOSS)
    return Spend(rate, noise, spend.steps)


def _rdp_epsilon(spends: Sequence[Spend], delta: float) -> float:
    epsilon, _ = compute_epsilon(ORDERS, renyi_divergences(spends), delta)
    return float(epsilon)


ACCOUNTANTS: Mapping[str, Callable[[Sequence[Spend], float], float]] = MappingProxyType(
    {"pld": pld_epsilon, "rdp": _rdp_epsilon, "theorem-4.1": theorem_4_1_epsilon}
)


def check_accountant(name: str) -> str:
    """Return ``name`` if it is a known accountant."""
    if name not in ACCOUNTANTS:
        close = difflib.get_close_matches(name, ACCOUNTANTS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ArgumentError(f"Unknown accountant {name!r}: choose one of {', '.join(ACCOUNTANTS)}{hint}")
    return name


def epsilon_of(spends: Iterable[Spend], delta: float, accountant: str = "pld") -> float:
    """The epsilon for which the composition of ``spends`` is (epsilon, ``delta``)-DP, per ``accountant``.

    Composes once per distinct (sampling rate, noise multiplier) with its number of steps. Without spends it
    is 0; with a spend that adds no noise, or next to none, it is infinite. Where arithmetic would give out the
    figure is rounded up: less noise than LEAST_NOISE counts as none, more than MOST_NOISE as MOST_NOISE, a rarer
    sampling than LEAST_RATE as LEAST_RATE, a step that costs next to nothing as one that costs LEAST_LOSS, and more
    than MOST_STEPS steps cost everything.
    """
    if not 0 < delta < 1:
        raise ArgumentError(f"delta must lie in (0, 1), got {delta!r}.")
    merged = merge(_in_range(spend) for spend in spends)
    if not merged:
        return 0.0
    if any(spend.noise_multiplier < LEAST_NOISE for spend in merged):
        return math.inf
    if sum(spend.steps for spend in merged) > MOST_STEPS:
        return math.inf
    check_accountant(accountant)
    if accountant == "pld" and (bound := _rdp_epsilon(merged, delta)) > HOPELESS:
        return bound
    return ACCOUNTANTS[accountant](merged, delta)
