"""Several runs on the same data under one promise, though each may be chosen by what earlier ones have shown.

A run's noise is fixed before it starts, so tight composition holds for it (``accountants``). The next run's noise is
chosen by somebody who has seen the first run's results, and there tight composition of privacy loss distributions is
not known to hold. What holds for every way of choosing is a Renyi filter (Feldman and Zrnic, 2021): fix one order a and
let runs begin as long as their Renyi divergences of order a, added up, stay below a limit B. Then everything together
is (a, B)-Renyi private, whatever was chosen by what, and hence (epsilon, delta) with

    epsilon = B + log(1 - 1/a) - (log delta + log a) / (a - 1).

The order is the one at which most Gaussian noise fits into the budget, a function of (epsilon, delta) alone.

The first run of a budget was chosen by nobody who had seen anything. It may use the whole budget by the tight bound; if
the filter would not have let it in, no other run may follow. Proof: outcomes after which only that run took place are
covered by the tight bound, there are no others.

A run may also set a delta aside for an event by itself (such as naming a rare category). A tenth of the budget's delta
is for these: outside of such events, whose probabilities add up to at most that, the filter holds at the other nine
tenths.

A run may also promise a pure epsilon e, as the answers of a local client do. Any two laws whose ratio is at most exp(e)
are made from a coin with the chances exp(e) : 1 and its reverse (Kairouz, Oh and Viswanath, 2015), so its divergence is
at most that of the coin,

    (log cosh((a - 1/2) e) - log cosh(e / 2)) / (a - 1),

and the filter counts that. As long as all runs are of this kind, their epsilons may simply add up to the budget's
instead. Proof that either may be used: results after which all runs were pure are at most exp(epsilon) times as likely.
All other results are also results of a process that stops where the filter would, so epsilon and delta hold for them
together; and delta was needed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacit.errors import ArgumentError, check_non_negative, check_positive
from tacit.plan.accountants import LEAST_DELTA, ORDERS, Spend, epsilon_of, merge, renyi_cost

ASIDE_SHARE = 0.1
"""The part of delta for events that runs have set a delta aside for."""

MOST_PURE = 1e9
"""No pure epsilon is larger: sums of them stay finite."""


@dataclass(frozen=True)
class Cost:
    """What one run costs: its releases, a delta for an event of its own, and what it promises by a pure epsilon."""

    spends: tuple[Spend, ...] = ()
    aside: float = 0.0
    pure: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_non_negative("aside", self.aside)
        for epsilon in self.pure:
            if check_positive("pure epsilon", epsilon) > MOST_PURE:
                raise ArgumentError(f"A pure epsilon of {epsilon:g} promises nothing; no budget has as much.")


def together(costs: Iterable[Cost]) -> Cost:
    """The cost of several runs that were all decided on beforehand."""
    listed = tuple(costs)
    return Cost(
        merge(spend for cost in listed for spend in cost.spends),
        sum(cost.aside for cost in listed),
        tuple(sorted((epsilon for cost in listed for epsilon in cost.pure), reverse=True)),
    )


def pure_divergence(epsilon: float, order: float) -> float:
    """The Renyi divergence of ``order`` that a pure ``epsilon`` can have at most; rounding does not make it less."""
    exact = (_log_cosh((order - 0.5) * epsilon) - _log_cosh(epsilon / 2)) / (order - 1)
    return min(epsilon, exact * (1 + 1e-11))


def _log_cosh(x: float) -> float:
    if x < 1:  # the logarithm of a number close to one would lose its digits
        return math.log1p(2 * math.sinh(x / 2) ** 2)
    return x + math.log1p(math.exp(-2 * x)) - math.log(2)


@dataclass(frozen=True)
class Filter:
    """Which runs may begin under (``epsilon``, ``delta``)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not LEAST_DELTA <= self.delta < 1:
            raise ArgumentError(f"delta must lie in [{LEAST_DELTA:g}, 1), got {self.delta!r}.")

    @cached_property
    def _limit(self) -> tuple[int, float]:
        """The place of the order among ``ORDERS``, and the divergence that the budget allows at it."""
        orders = np.asarray(ORDERS)
        delta = self.delta * (1 - ASIDE_SHARE)
        allowed = self.epsilon - np.log1p(-1 / orders) + (math.log(delta) + np.log(orders)) / (orders - 1)
        place = int(np.argmax(allowed / orders))
        return place, float(allowed[place])

    @property
    def order(self) -> float:
        """The order of the filter."""
        return ORDERS[self._limit[0]]

    def used(self, costs: Sequence[Cost]) -> float:
        """The share of the budget that runs have used, by the filter; above 1 they do not fit."""
        if not costs:
            return 0.0
        place, allowed = self._limit
        total = together(costs)
        divergence = float(renyi_cost(total.spends)[place]) if total.spends else 0.0
        divergence += math.fsum(pure_divergence(epsilon, self.order) for epsilon in total.pure)
        aside = total.aside / (ASIDE_SHARE * self.delta)
        share = divergence / allowed if allowed > 0 else (math.inf if divergence > 0 else 0.0)
        if not total.spends:
            share = min(share, math.fsum(total.pure) / self.epsilon)
        return max(aside, share)

    def admits(self, costs: Sequence[Cost], first: Cost) -> bool:
        """Whether runs of these costs may all take place; ``first`` is what the first of them was let in with."""
        if together(costs) == Cost():
            return True
        if self.used(costs) <= 1 and self.used([first]) <= 1:
            return True
        return len(costs) == 1 and self.epsilon_beforehand([first]) <= self.epsilon

    def epsilon_beforehand(self, costs: Sequence[Cost]) -> float:
        """Epsilon at ``delta`` if all these runs had been decided on before the first: the tight bound.

        Pure epsilons are added to it as they are.
        """
        total = together(costs)
        left = self.delta - total.aside
        if left < LEAST_DELTA:
            return math.inf if total != Cost() else 0.0
        return epsilon_of(total.spends, left) + math.fsum(total.pure)
