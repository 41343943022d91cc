"""Does a sample look like noise of a given standard deviation?"""

from __future__ import annotations

import numpy as np
from scipy import stats
from torch import Tensor

LEAST = 1e-7
"""Right noise fails one test with this probability: draws are not seeded, and there are dozens of tests."""


def looks_like(sample: Tensor, deviation: float) -> bool:
    """Chi-square test of the variance around zero, Kolmogorov-Smirnov test of the shape, both two-sided."""
    values = sample.double().flatten().numpy() / deviation
    energy = float((values**2).sum())
    variance = 2 * min(stats.chi2.sf(energy, len(values)), stats.chi2.cdf(energy, len(values)))
    return bool(variance > LEAST and stats.kstest(values, "norm").pvalue > LEAST)


def uncorrelated(one: Tensor, other: Tensor) -> bool:
    """No element is repeated in place, and the correlation is what chance gives."""
    a, b = one.double().flatten().numpy(), other.double().flatten().numpy()
    return bool((a != b).mean() > 0.99 and abs(np.corrcoef(a, b)[0, 1]) < 5.5 / len(a) ** 0.5)
