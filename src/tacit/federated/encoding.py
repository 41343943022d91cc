"""Perturbed encoding (PE) in closed form.

PE marks the k coordinates of largest magnitude, flips every mark with probability 1−p independently, and
draws one of the marked coordinates uniformly (⊥ if none is left). A coordinate that was in the top k is the
output with probability p·E[1/(1+X₁)], X₁ ~ Bin(k−1, p) + Bin(d−k, 1−p), one that was not with
(1−p)·E[1/(1+X₀)], X₀ ~ Bin(k, p) + Bin(d−k−1, 1−p). X₀ is stochastically larger than X₁ when p > ½, so the
ratio of the two is *above* p/(1−p): the paper's p = e^ε/(1+e^ε) is not ε-LDP, and p has to be found from
the true ratio.

E[1/(1+X)] = ∫₀¹ E[s^X] ds, and E[s^X] is a product of two powers: one smooth integral, whatever d is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import ArgumentError

Floats = NDArray[np.float64]

_PANELS = 28
_NODES_PER_PANEL = 12


def _quadrature() -> tuple[Floats, Floats]:
    # The integrand falls off like exp(-λt) from t = 1-s = 0 with λ up to d: panels that halve towards 0
    # resolve every λ up to 2^30 to the precision of the arithmetic.
    nodes, weights = np.polynomial.legendre.leggauss(_NODES_PER_PANEL)
    edges = np.concatenate([[0.0], 2.0 ** -np.arange(_PANELS - 1, -1, -1.0)])
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (nodes + 1)).ravel(), (half * weights).ravel()


_T, _W = _quadrature()


def encoding_probabilities(d: ArrayLike, k: ArrayLike, logit: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return (f_top, f_rest, P[⊥]) of PE that keeps a mark with probability p = 1/(1+e^−logit).

    ``f_top`` is the probability of one given coordinate of the top k, ``f_rest`` of one given other
    coordinate: k·f_top + (d−k)·f_rest + P[⊥] = 1. Arguments broadcast; 1 ≤ k < d.
    """
    dimension, top, x = np.broadcast_arrays(
        np.asarray(d, np.float64), np.asarray(k, np.float64), np.asarray(logit, np.float64)
    )
    keep, flip = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    log_keep = np.log1p(-keep[..., None] * _T)
    log_flip = np.log1p(-flip[..., None] * _T)
    rest = dimension - top
    common = (top[..., None] - 1) * log_keep + (rest[..., None] - 1) * log_flip
    f_top = keep * (np.exp(common + log_flip) @ _W)
    f_rest = flip * (np.exp(common + log_keep) @ _W)
    bottom = np.exp(top * np.log(flip) + rest * np.log(keep))
    return f_top, f_rest, bottom


def encoding_epsilon(d: ArrayLike, k: ArrayLike, logit: ArrayLike) -> Floats:
    """Return the exact ε of PE at the given logit of its keep probability: ln(f_top / f_rest)."""
    f_top, f_rest, _ = encoding_probabilities(d, k, logit)
    return np.log(f_top) - np.log(f_rest)


def calibrated_logit(d: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Floats:
    """Return the largest logit, to 1e-12, at which PE is exactly ``epsilon``-LDP; never above it.

    The exact ε grows with the logit and is never below it, so the answer lies in (0, epsilon].
    """
    dimension, top, target = np.broadcast_arrays(
        np.asarray(d, np.float64), np.asarray(k, np.float64), np.asarray(epsilon, np.float64)
    )
    before, after = np.zeros_like(target), target.copy()
    value_before, value_after = np.zeros_like(target), encoding_epsilon(dimension, top, after)
    for _ in range(40):
        error = value_after - target
        if np.all((error <= 0) & (error >= -1e-12)):
            return after
        # A secant step, aimed a hair below the target so that the iteration ends on the private side.
        slope = (value_after - value_before) / np.where(after == before, 1.0, after - before)
        step = np.where(
            (error <= 0) & (error >= -1e-12), 0.0, (error + 5e-13) / np.where(slope > 0, slope, 1.0)
        )
        before, value_before = after, value_after
        after = np.clip(after - step, 0.0, target)
        value_after = encoding_epsilon(dimension, top, after)
    raise ArgumentError(
        f"Perturbed encoding cannot be calibrated for d={d!r}, k={k!r}, epsilon={epsilon!r}; use ps or exp."
    )
