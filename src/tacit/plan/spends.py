"""What a run pays for: so many steps of one Poisson-subsampled Gaussian mechanism."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tacit.errors import check_count, check_non_negative, check_share


@dataclass(frozen=True, order=True)
class Spend:
    """``steps`` releases of N(sum, sigma^2 C^2 I), each on a Poisson sample with rate ``sampling_rate``.

    The L2 sensitivity of the sum is C under the add-or-remove-one relation, so the cost of a spend
    depends on (sampling rate, noise multiplier, steps) and on nothing else.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        check_share("sampling_rate", self.sampling_rate)
        check_non_negative("noise_multiplier", self.noise_multiplier)
        check_count("steps", self.steps)


def merge(spends: Iterable[Spend]) -> tuple[Spend, ...]:
    """Add up the steps of spends with equal sampling rate and noise multiplier, in a canonical order.

    Composition does not depend on the order of the mechanisms, so the merged spends cost the same.
    """
    steps: dict[tuple[float, float], int] = {}
    for spend in spends:
        key = (spend.sampling_rate, spend.noise_multiplier)
        steps[key] = steps.get(key, 0) + spend.steps
    return tuple(Spend(rate, noise, count) for (rate, noise), count in sorted(steps.items()))
