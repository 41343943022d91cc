"""Proposition 5.1 over many steps, exactly, where the loss is quadratic.

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

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive
from tacit.theory.score import Real


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
