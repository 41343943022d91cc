"""One line of the ledger: what a release costs, and what an auditor wants to know about it."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import LedgerError, check_count, check_non_negative, check_positive, check_share


@dataclass(frozen=True)
class Charge:
    """One release to be paid for: N(sum, (noise_multiplier * clip_norm)^2 I) on a Poisson sample.

    ``index`` is the place in the ledger, ``step`` the step of the plan that the release serves; after a loss
    the same step is charged again. ``batch_size`` is the planned divisor, ``active`` how many numbers are
    released (the active coordinates, or the rows where row norms are released), ``secure_noise`` whether the noise is
    cryptographic or, for experiments only, seeded.
    """

    index: int
    step: int
    phase: str
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    batch_size: int
    active: int
    secure_noise: bool

    def __post_init__(self) -> None:
        check_count("index", self.index, least=0)
        check_count("step", self.step, least=0)
        check_share("sampling_rate", self.sampling_rate)
        check_non_negative("noise_multiplier", self.noise_multiplier)
        check_positive("clip_norm", self.clip_norm)
        check_count("batch_size", self.batch_size)
        check_count("active", self.active, least=0)
        if not isinstance(self.phase, str) or not self.phase or not isinstance(self.secure_noise, bool):
            raise LedgerError(
                "A charge needs the name of its phase and whether its noise is secure, "
                f"got {self.phase!r} and {self.secure_noise!r}."
            )
