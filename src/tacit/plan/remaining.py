"""After a crash: how many steps are left, so that the promise holds whoever chose the moment of the crash.

A crash can leave charges in the ledger whose results were lost. They stay paid, and they are not repeated on top:
release number i of a run always has the noise that the plan gives its step number i, and the run ends after as many
releases as planned. So the noise of every release is fixed before the run starts. Composition bounds of privacy loss
distributions hold for such a sequence even if everything else (data, support, weights, the moment of each crash)
depends on earlier releases. They do not hold for noise that is chosen on the way; see docs/concepts/theory.md.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from tacit.errors import LedgerError, check_count
from tacit.plan.accountants import Spend, epsilon_of
from tacit.plan.plan import Plan


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


def steps_left(plan: Plan, charges: Iterable[Paid], kept: int) -> int:
    """How many steps may follow the first ``kept``, given every charge that the ledger holds.

    Those that the plan has left after as many releases as were charged. A ledger that has departed from the plan's
    noise (version 0.1 chose new noise after a crash) may leave fewer: as many as the promise allows.
    """
    paid = tuple(charges)
    _check_fit(plan, paid, check_count("kept", kept, least=0))
    left = max(0, plan.steps - len(paid))
    if follows(plan, paid):
        return left
    spent = _epsilon(plan, paid, 0)
    if not spent <= plan.epsilon:
        raise LedgerError(
            f"The ledger has spent epsilon = {spent:.6g}, above the promised {plan.epsilon:.6g}; "
            "no further step can be taken: start a new run, and add its epsilon to this one's."
        )
    within = bisect.bisect_right(
        range(1, left + 1), plan.epsilon, key=lambda further: _epsilon(plan, paid, further)
    )
    return min(within, left)


def follows(plan: Plan, charges: Sequence[Paid]) -> bool:
    """Whether every release was sampled and noised at least as well as planned for its place, and none is extra."""
    planned = _planned(plan)
    return len(charges) <= plan.steps and all(
        charge.sampling_rate <= rate and charge.noise_multiplier >= noise
        for charge, (rate, noise) in zip(charges, planned, strict=False)
    )


def _epsilon(plan: Plan, paid: Sequence[Paid], further: int) -> float:
    """What is paid and ``further`` releases as the plan has them next."""
    counts = Counter((charge.sampling_rate, charge.noise_multiplier) for charge in paid)
    counts.update(itertools.islice(_planned(plan), len(paid), len(paid) + further))
    spends = [Spend(rate, noise, count) for (rate, noise), count in sorted(counts.items())]
    return epsilon_of(spends, plan.gaussian_delta, plan.accountant, plan.relation)


def _planned(plan: Plan) -> Iterable[tuple[float, float]]:
    for spend in plan.spends():
        yield from itertools.repeat((spend.sampling_rate, spend.noise_multiplier), spend.steps)


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
