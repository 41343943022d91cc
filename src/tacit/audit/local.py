"""Audit local mechanisms (FedSel): the exact ε of their output laws, and a test on what they really draw."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.federated.check import TOLERANCE, check_mechanism


@dataclass(frozen=True)
class LocalFinding:
    """A selection and a perturbation: claimed ε, exact ε by enumeration, and a lower bound from samples."""

    selection: str
    perturbation: str
    d: int
    k: int
    confidence: float
    epsilon_claimed: float
    epsilon_exact: float
    epsilon_lower: float

    @property
    def holds(self) -> bool:
        """Whether neither the law nor the samples contradict the claim."""
        return max(self.epsilon_exact, self.epsilon_lower) <= self.epsilon_claimed + TOLERANCE


def audit_local(
    selection: str,
    perturbation: str,
    *,
    d: int = 100,
    k: int = 10,
    epsilon1: float = 0.5,
    epsilon2: float = 1.5,
    samples: int = 200_000,
    confidence: float = 0.999,
    seed: int = 0,
) -> LocalFinding:
    """Check one local mechanism. ``pe-paper`` claims what its certificate states, which is its exact ε."""
    report = check_mechanism(
        selection, d, k, epsilon1, perturbation, epsilon2, samples=samples, confidence=confidence, seed=seed
    )
    assert report.sampled is not None
    claimed = report.exact_epsilon if selection == "pe-paper" else report.claimed_epsilon
    return LocalFinding(
        selection,
        perturbation,
        d,
        k,
        confidence,
        claimed,
        report.exact_epsilon,
        max(0.0, report.sampled.lower),
    )
