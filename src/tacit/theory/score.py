"""Scores of coordinates: bias, variance, misranking, and what keeping a coordinate is worth.

Proposition 5.3 and Remark B.1: how likely does the warm-up rank a weaker coordinate above a stronger one?

Two coordinates with squared signals Gp² > Gq² are scored over T₁ steps by
:func:`tacit.theory.debiased_score` under the additive model. They are misranked when ap < aq. In units of
the noise, T₁·ap/ν² + T₁ is noncentral chi-square with T₁ degrees of freedom and noncentrality T₁Gp²/ν², so
the probability is exact, and every bound can be held against it.

Write Δ = Gp² − Gq² and W = ν⁴ + ν²(Gp² + Gq²), so that Var(ap − aq) = 4W/T₁.

Proposition 5.1 over many steps, exactly, where the loss is quadratic.

One coordinate has loss ½h·e² in its distance e from the optimum, so its gradient is he, and starts with
gradient G. A private step moves e ← e − η(he + noise of variance ν²). With r = (1 − ηh)²,

    E[e_T²] = rᵀ e₀² + η²ν² (1 − rᵀ) / (1 − r),        1 − r = ηh(2 − ηh).

A silent coordinate keeps e₀² = G²/h². The difference is (1 − rᵀ)(e₀² − η²ν²/(1 − r)): its sign does not
depend on T. So a coordinate is worth keeping iff

    G² > ν² · ηh / (2 − ηh).

At ηh = 1 this is the one-step rule G² > ν² of Proposition 5.1; at the small steps of real training it is
lower by the factor ηh/2, which is why the one-step rule silences far too much. Signal adds up over 1/(ηh)
steps, noise averages out. For ηh ≤ 1 the condition of Proposition 5.1 is thus necessary for sparsity to
help, never sufficient.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from scipy import stats
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive

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


BERNSTEIN_CONSTANT = 1 / 8
"""The largest absolute constant c with which Remark B.1 is true (see :func:`misranking_bernstein`)."""


def misranking_chebyshev(stronger: float, weaker: float, steps: int, noise_variance: float) -> float:
    """Proposition 5.3: Pr[ap < aq] ≤ 4W / (T₁Δ²), by Chebyshev's inequality; capped at 1.

    ``stronger`` and ``weaker`` are the squared signals Gp² > Gq². Correct, and loose by orders of magnitude
    as soon as the ranking is reliable: it falls like 1/T₁ where the truth falls exponentially.
    """
    gap, spread = _gap_and_spread(stronger, weaker, steps, noise_variance)
    return min(1.0, 4 * spread / (steps * gap**2))


def misranking_bernstein(
    stronger: float, weaker: float, steps: int, noise_variance: float, constant: float = BERNSTEIN_CONSTANT
) -> float:
    """Remark B.1: exp(−c T₁ min{Δ²/W, Δ/(ν² + max(|Gp|, |Gq|) ν)}).

    The paper leaves the absolute constant c unnamed. It is 1/8: c = 1/8 is valid by
    :func:`misranking_subgaussian`, and nothing larger is, because for Δ → 0 the exact exponent is Δ²T₁/(8W)
    (the central limit). So with c = 1, as a reader might assume, the remark is false. The second term of
    the minimum is never needed and costs much: for a strong signal it grows like |G| where the exact
    exponent grows like G².
    """
    gap, spread = _gap_and_spread(stronger, weaker, steps, noise_variance)
    linear = gap / (noise_variance + math.sqrt(stronger * noise_variance))
    return math.exp(-constant * steps * min(gap**2 / spread, linear))


def misranking_subgaussian(stronger: float, weaker: float, steps: int, noise_variance: float) -> float:
    """Pr[ap < aq] ≤ exp(−T₁Δ² / (8W)), our sharpening of Remark B.1; below Proposition 5.3 everywhere.

    Proof, with ν = 1 and S = Gp² + Gq². For 0 < λ < ½ the Chernoff exponent of one step is f(λ) = −½ log(1
    − 4λ²) + (−λΔ + 2λ²S) / (1 − 4λ²). With −log(1 − u) ≤ u/(1 − u), it is at most (−λΔ + 2λ²(1 + S)) / (1 −
    4λ²). At λ = Δ / (4(1 + S)) < ¼ the numerator is −Δ² / (8(1 + S)) and the denominator at most 1. Steps
    are independent, so the exponents add.
    """
    gap, spread = _gap_and_spread(stronger, weaker, steps, noise_variance)
    return math.exp(-steps * gap**2 / (8 * spread))


def misranking_exact(stronger: float, weaker: float, steps: int, noise_variance: float) -> float:
    """Pr[ap < aq] itself, by integrating Pr[X ≤ y] over the density of Y for the two noncentral chi-squares.

    A Gauss–Legendre rule runs between quantiles of both variables, down to tails of 1e-12. Where X ≤ Y both
    are in tails at least as likely as the answer, so answers above 1e-12 are good to about 1e-6 relative;
    smaller ones only in order of magnitude.
    """
    _gap_and_spread(stronger, weaker, steps, noise_variance)
    low = stats.ncx2(steps, steps * stronger / noise_variance)
    high = stats.ncx2(steps, steps * weaker / noise_variance) if weaker > 0 else stats.chi2(steps)
    edges = np.unique(np.concatenate([low.ppf(_LEVELS), high.ppf(_LEVELS), [0.0]]))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    # x = r² removes the singularity of the density at 0 for one degree of freedom.
    roots = np.sqrt(edges)
    half = np.diff(roots)[:, None] / 2
    r = roots[:-1, None] + half * (1 + nodes)
    return float(np.sum(half * weights * 2 * r * low.cdf(r**2) * high.pdf(r**2)))


_LEVELS = np.array(
    [1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.99, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12]
)


def _gap_and_spread(stronger: float, weaker: float, steps: int, noise_variance: float) -> tuple[float, float]:
    check_non_negative("The squared signal of the weaker coordinate", weaker)
    check_count("The number of warm-up steps", steps)
    check_positive("The noise variance", noise_variance)
    if not (math.isfinite(stronger) and stronger > weaker):
        raise ArgumentError(
            f"The stronger coordinate must have the larger squared signal, got {stronger!r} and {weaker!r}."
        )
    return stronger - weaker, noise_variance**2 + noise_variance * (stronger + weaker)


def keep_threshold(curvature: float, learning_rate: float, noise_variance: float) -> float:
    """ν² ηh / (2 − ηh): the squared gradient above which a coordinate is worth its noise, for every T ≥ 1."""
    step = _relative_step(curvature, learning_rate)
    return check_non_negative("The noise variance", noise_variance) * step / (2 - step)


def active_excess_loss(
    squared_signal: Real, curvature: float, learning_rate: float, steps: int, noise_variance: float
) -> Real:
    """Expected excess loss ½h E[e_T²] of an active coordinate after ``steps`` private steps."""
    step = _relative_step(curvature, learning_rate)
    decay = (1 - step) ** (2 * check_count("The number of steps", steps, least=0))
    floor = keep_threshold(curvature, learning_rate, noise_variance)
    return (decay * squared_signal + (1 - decay) * floor) / (2 * curvature)


def silent_excess_loss(squared_signal: Real, curvature: float) -> Real:
    """Excess loss G²/(2h) of a coordinate that never moves."""
    return squared_signal / (2 * check_positive("The curvature", curvature))


def _relative_step(curvature: float, learning_rate: float) -> float:
    check_positive("The curvature", curvature)
    check_positive("The learning rate", learning_rate)
    step = curvature * learning_rate
    if step >= 2:
        raise ArgumentError(f"Gradient descent diverges for learning rate × curvature ≥ 2, got {step:g}.")
    return step


def noise_std(sigma: float, clip_norm: float, batch_size: float) -> float:
    """ν = σC/B: the standard deviation of the noise in one coordinate of the released mean gradient.

    A step releases (Σᵢ ḡᵢ + z) / B with z ~ N(0, σ²C² I). All three numbers are public; ``batch_size`` is the
    planned batch size B, never the length of the drawn batch.
    """
    check_non_negative("The noise multiplier", sigma)
    check_positive("The clip norm", clip_norm)
    check_positive("The batch size", batch_size)
    return sigma * clip_norm / batch_size
