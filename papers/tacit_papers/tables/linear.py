"""Two private methods for wide linear problems: Frank–Wolfe and greedy coordinate descent, with their accounting.

Both fit a logistic model on features in [-1, 1] and touch one coordinate per step, so their noise depends on the
logarithm of the number of features. A row is added or removed; the number of rows is public, as everywhere in Tacit.

With the mean gradient g = (1/n) Σ (p_i - y_i) x_i, one row moves each entry of g by at most 1/n.

- Choosing: the exponential mechanism with scores of sensitivity 1/n at ε₀, by Gumbel noise of scale 2 / (n ε₀). It has
  a range bounded by ε₀ and is therefore ε₀²/8-zCDP (Cesar and Rogers 2021).
- Measuring one entry with Gaussian noise of deviation s: 1 / (2 n² s²)-zCDP (Bun and Steinke 2016).

zCDP adds up over adaptive steps; ``rho_of`` converts. Frank–Wolfe: Talwar, Thakurta and Zhang 2015. Greedy coordinate
descent: Mangold, Bellet, Salmon and Tommasi 2023, here with Gumbel and Gaussian noise in place of Laplace noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit

from tacit.errors import check_positive, check_share

Array = NDArray[np.float64]


def delta_of(rho: float, epsilon: float) -> float:
    """The δ at which ρ-zCDP gives ε (Canonne, Kamath and Steinke 2020, Proposition 12), minimised over orders."""

    def log_delta(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return (order - 1) * (order * rho - epsilon) + order * math.log1p(-1 / order) - math.log(order - 1)

    # Every order gives a valid bound, so an inexact minimum costs accuracy and not privacy.
    grid = np.linspace(-6, 16, 200)
    best = grid[int(np.argmin([log_delta(place) for place in grid]))]
    found = minimize_scalar(log_delta, bounds=(best - 0.2, best + 0.2), method="bounded")
    return math.exp(min(0.0, min(float(found.fun), log_delta(float(best)))))


def rho_of(epsilon: float, delta: float) -> float:
    """The largest ρ, up to rounding down, such that ρ-zCDP implies (ε, δ)."""
    check_positive("epsilon", epsilon)
    check_share("delta", delta, one_allowed=False)
    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low


def frank_wolfe(
    x: Array, y: NDArray[np.int64], epsilon: float, delta: float, seed: int, *, radius: float, steps: int
) -> Array:
    """Logistic weights inside the L1 ball of ``radius``: each step moves towards a vertex that is chosen privately."""
    x, rows, draw = np.clip(x, -1, 1), len(x), np.random.default_rng(seed)
    choosing = math.sqrt(8 * rho_of(epsilon, delta) / steps)
    weights = np.zeros(x.shape[1])
    for step in range(steps):
        gradient = x.T @ (expit(x @ weights) - y) / rows
        scores = np.concatenate([-gradient, gradient])  # of the vertices + radius e_j and - radius e_j
        place = int(np.argmax(scores + draw.gumbel(scale=2 / (rows * choosing), size=len(scores))))
        rate = 2 / (step + 2)
        weights *= 1 - rate
        weights[place % len(weights)] += rate * (radius if place < len(weights) else -radius)
    return weights


def greedy_coordinates(
    x: Array, y: NDArray[np.int64], epsilon: float, delta: float, seed: int, *, steps: int
) -> Array:
    """Logistic weights from zero: each step measures and follows the entry of the gradient that seems largest."""
    x, rows, draw = np.clip(x, -1, 1), len(x), np.random.default_rng(seed)
    share = rho_of(epsilon, delta) / (2 * steps)  # half of it to choose, half to measure
    choosing, deviation = math.sqrt(8 * share), 1 / (rows * math.sqrt(2 * share))
    weights, margins = np.zeros(x.shape[1]), np.zeros(rows)
    for _ in range(steps):
        gradient = x.T @ (expit(margins) - y) / rows
        noise = draw.gumbel(scale=2 / (rows * choosing), size=len(gradient))
        place = int(np.argmax(np.abs(gradient) + noise))
        # The loss curves by at most 1/4 along a feature in [-1, 1], so 4 is the step of coordinate descent.
        change = -4 * (gradient[place] + draw.normal(scale=deviation))
        weights[place] += change
        margins += change * x[:, place]
    return weights
