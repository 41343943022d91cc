"""Proposition 5.3 and Remark B.1: how likely does the warm-up rank a weaker coordinate above a stronger one?

Two coordinates with squared signals Gp² > Gq² are scored over T₁ steps by
:func:`tacit.theory.debiased_score` under the additive model. They are misranked when ap < aq. In units of
the noise, T₁·ap/ν² + T₁ is noncentral chi-square with T₁ degrees of freedom and noncentrality T₁Gp²/ν², so
the probability is exact, and every bound can be held against it.

Write Δ = Gp² − Gq² and W = ν⁴ + ν²(Gp² + Gq²), so that Var(ap − aq) = 4W/T₁.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive

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
