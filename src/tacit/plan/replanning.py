"""After a crash: the noise of the steps that are left, so that the promise still holds.

A crash can leave charges in the ledger whose results were lost. They stay paid. The steps whose results were
lost are taken again, so the run makes more releases than planned and the rest needs more noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tacit.errors import LedgerError, check_count
from tacit.plan.accountants import epsilon_of
from tacit.plan.calibration import SpendsAt, least_noise
from tacit.plan.phase import Phase
from tacit.plan.record import Plan
from tacit.plan.spends import Spend


class Paid(Protocol):
    """What a ledger says about one release."""

    @property
    def phase(self) -> str:
        """The name of the phase that the release belongs to."""

    @property
    def sampling_rate(self) -> float:
        """The rate with which examples were sampled."""

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier that was used."""


@dataclass(frozen=True)
class Remaining:
    """What is left of a plan after ``kept`` steps, when ``lost`` further releases have been paid for.

    ``phases`` are those of the plan, in the same order and with the same steps; where steps are left the
    noise multiplier is the planned one times ``factor``. ``epsilon`` is that of all that is paid and all that
    is left.
    """

    phases: tuple[Phase, ...]
    kept: int
    lost: int
    factor: float
    epsilon: float


def replan(plan: Plan, charges: Iterable[Paid], kept: int) -> Remaining:
    """The noise for the steps after the first ``kept``, given every charge that the ledger holds.

    The composition of all charges with the remaining steps is (plan.epsilon, plan.delta)-DP. If every charge
    is one of the kept steps as planned, the noise stays exactly the planned one; after a loss, all remaining
    phases are noised by one common factor above 1.
    """
    paid = tuple(charges)
    _check_fit(plan, paid, check_count("kept", kept, least=0))
    lost = len(paid) - kept
    if lost == 0 and all(
        (charge.sampling_rate, charge.noise_multiplier) == planned
        for charge, planned in zip(paid, _planned(plan, kept), strict=True)
    ):
        return Remaining(plan.phases, kept, 0, 1.0, plan.spent())
    counts = Counter((charge.sampling_rate, charge.noise_multiplier) for charge in paid)
    spent = tuple(Spend(rate, noise, count) for (rate, noise), count in sorted(counts.items()))
    left = _left(plan, kept)

    def spends(factor: float) -> tuple[Spend, ...]:
        return (
            *spent,
            *(dataclasses.replace(spend, noise_multiplier=factor * spend.noise_multiplier) for spend in left),
        )

    factor = _factor(plan, paid, spent, spends) if left and not math.isinf(plan.epsilon) else 1.0
    total = epsilon_of(spends(factor), plan.delta, plan.accountant)
    if not total <= plan.epsilon:
        raise LedgerError(
            f"The ledger has spent epsilon = {total:.6g}, above the promised {plan.epsilon:.6g}; "
            "no further step can repair that."
        )
    return Remaining(_scaled(plan, kept, factor), kept, lost, factor, total)


def _factor(plan: Plan, paid: tuple[Paid, ...], spent: tuple[Spend, ...], spends: SpendsAt) -> float:
    already = epsilon_of(spent, plan.delta, plan.accountant)
    if already >= plan.epsilon:
        raise LedgerError(
            f"The ledger has already spent epsilon = {already:.6g} of the promised {plan.epsilon:.6g}: "
            "no further step can be taken; release the last checkpoint or start a new run."
        )
    # The factor in force, if it still keeps the promise, stays: a clean stop must not change the noise.
    for factor in (1.0, _factor_in_force(plan, paid)):
        if epsilon_of(spends(factor), plan.delta, plan.accountant) <= plan.epsilon:
            return factor
    return least_noise(spends, plan.epsilon, plan.delta, plan.accountant, start=1.05)


def _factor_in_force(plan: Plan, paid: tuple[Paid, ...]) -> float:
    planned = {phase.name: phase.noise_multiplier for phase in plan.phases}
    return paid[-1].noise_multiplier / planned[paid[-1].phase]


def _planned(plan: Plan, kept: int) -> Iterable[tuple[float, float]]:
    for spend in plan.spends(kept):
        for _ in range(spend.steps):
            yield spend.sampling_rate, spend.noise_multiplier


def _left(plan: Plan, kept: int) -> tuple[Spend, ...]:
    done = kept
    left = []
    for phase in plan.phases:
        steps = max(0, phase.steps - done)
        done = max(0, done - phase.steps)
        if steps:
            left.append(Spend(phase.sampling_rate, phase.noise_multiplier, steps))
    return tuple(left)


def _scaled(plan: Plan, kept: int, factor: float) -> tuple[Phase, ...]:
    end = 0
    phases = []
    for phase in plan.phases:
        end += phase.steps
        noise = phase.noise_multiplier * (factor if end > kept else 1.0)
        phases.append(dataclasses.replace(phase, noise_multiplier=noise))
    return tuple(phases)


def _check_fit(plan: Plan, paid: tuple[Paid, ...], kept: int) -> None:
    if kept > plan.steps:
        raise LedgerError(f"The checkpoint has {kept} steps, more than the {plan.steps} of the plan.")
    if kept > len(paid):
        raise LedgerError(
            f"The checkpoint has {kept} steps but the ledger only {len(paid)} charges; "
            "the ledger belongs to another run or was cut, so nothing can be promised."
        )
    names = {phase.name for phase in plan.phases}
    for charge in paid:
        if charge.phase not in names:
            raise LedgerError(f"The ledger charges a phase {charge.phase!r} that the plan does not have.")
