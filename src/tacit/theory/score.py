"""Lemma 5.2: the debiased coordinate score of the warm-up, and its exact variance."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from tacit.errors import check_count, check_non_negative

Real = TypeVar("Real", float, Tensor)


def debiased_score(sum_of_squares: Tensor, steps: int, noise_variance: float) -> Tensor:
    """a = (1/T₁) Σₜ g̃ₜ² − ν²: the paper's score, from a running sum of squared released gradients.

    ``steps`` is T₁, the number of releases summed; ``noise_variance`` is ν₁² = (σ₁C₁/B)², or the mean of
    νₜ² over the steps where it varied. If each release is G + noise with that variance, then E[a] = G².
    Mini-batch sampling adds its own variance v to every coordinate of a release, which is not subtracted:
    then E[a] = G² + v.
    """
    check_count("The number of warm-up steps", steps)
    check_non_negative("The noise variance", noise_variance)
    return sum_of_squares / steps - noise_variance


def score_variance(squared_signal: Real, steps: int, noise_variance: float) -> Real:
    """Var(a) = (2ν⁴ + 4ν²G²) / T₁ of the debiased score under the additive model (Appendix B.1, step 1)."""
    check_count("The number of warm-up steps", steps)
    check_non_negative("The noise variance", noise_variance)
    return (2 * noise_variance**2 + 4 * noise_variance * squared_signal) / steps
