"""Convergence of masked DP-SGD, and the bias of clipping.

Lemma 6.4: the bias that clipping leaves in the mean gradient, and its bound.

All of these read raw per-example gradients and are therefore oracles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive, check_share
from tacit.theory.capture import Oracle


@dataclass(frozen=True)
class StationarityBound:
    """An upper bound on the mean squared gradient norm along phase 2, term by term."""

    optimization_progress: float
    """2(L₀ − L*) / (η T₂)"""
    clipping_bias: float
    """(1/T₂) Σₜ E‖bₜ‖²; does not vanish with more steps"""
    minibatch_variance: float
    """β η τ² / B"""
    perturbation: float
    """β η k̄ ν₂²; the only term that sparsity lowers directly"""

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.optimization_progress + self.clipping_bias + self.minibatch_variance + self.perturbation


def projected_stationarity(
    *,
    initial_gap: float,
    steps: int,
    learning_rate: float,
    smoothness: float,
    mean_squared_bias: float,
    minibatch_variance: float,
    batch_size: float,
    mean_active: float,
    noise_variance: float,
) -> StationarityBound:
    """Theorem 6.3: (1/T₂) Σₜ E‖Pₜ∇L(θₜ)‖² ≤ 2(L₀ − L*)/(ηT₂) + (1/T₂) Σₜ E‖bₜ‖² + βη(τ²/B + k̄ν₂²).

    ``initial_gap`` is L₀ − L*, ``minibatch_variance`` is τ² (a batch mean has variance τ²/B),
    ``mean_active`` is k̄, the mean support size. Holds for a constant learning rate η ≤ 1/β and any support
    that was fixed before its step. Attained by a quadratic of curvature β at η = 1/β, up to a remainder of
    βη(τ²/B + k̄ν₂²)/T₂. On a quadratic of curvature h ≤ β both the progress and the noise term exceed the
    truth, for T₂ → ∞ by (2 − ηh) and (2 − ηh)β/h.
    """
    check_non_negative("The initial loss gap", initial_gap)
    check_count("The number of phase-2 steps", steps)
    check_positive("The learning rate", learning_rate)
    check_positive("The smoothness", smoothness)
    check_non_negative("The mean squared clipping bias", mean_squared_bias)
    check_non_negative("The mini-batch variance", minibatch_variance)
    check_positive("The batch size", batch_size)
    check_non_negative("The mean support size", mean_active)
    check_non_negative("The noise variance", noise_variance)
    # The relative slack forgives rounding in a caller's own 1/β.
    if learning_rate * smoothness > 1 + 1e-12:
        raise ArgumentError(
            f"Theorem 6.3 needs a learning rate of at most 1/smoothness = {1 / smoothness:g}, "
            f"got {learning_rate:g}."
        )
    step_cost = smoothness * learning_rate
    return StationarityBound(
        optimization_progress=2 * initial_gap / (learning_rate * steps),
        clipping_bias=mean_squared_bias,
        minibatch_variance=step_cost * minibatch_variance / batch_size,
        perturbation=step_cost * mean_active * noise_variance,
    )


def full_stationarity(projected: StationarityBound, capture: float) -> StationarityBound:
    """Corollary 6.6: the bound on the full gradient, every term of Theorem 6.3 divided by α_T in (0, 1]."""
    check_share("The energy capture α_T", capture)
    return StationarityBound(
        optimization_progress=projected.optimization_progress / capture,
        clipping_bias=projected.clipping_bias / capture,
        minibatch_variance=projected.minibatch_variance / capture,
        perturbation=projected.perturbation / capture,
    )


def effective_noise_dimension(active: float, capture: float) -> float:
    """k̄/α_T: sparsity lowers the noise term of Corollary 6.6 iff this is below d (equivalently α_T > k̄/d)."""
    check_non_negative("The mean support size", active)
    return active / check_share("The energy capture α_T", capture)


def clipping_bias(gradients: Tensor, clip_norm: float) -> Oracle:
    """‖b‖, b being the mean of clipped − unclipped rows of ``gradients`` (examples × active coordinates)."""
    bias = (clip_rows(gradients, clip_norm) - gradients).mean(dim=0)
    return Oracle("clipping bias ‖b‖", float(bias.norm()))


def clipping_residual(gradients: Tensor, clip_norm: float) -> Oracle:
    """Lemma 6.4's bound on ‖b‖: the mean of (‖gᵢ‖ − C)₊ over the rows of ``gradients``.

    Equal to ‖b‖ when every clipped gradient points the same way (or nothing is clipped); loose when the
    residuals of different examples cancel, as near a stationary point.
    """
    _check_gradients(gradients, clip_norm)
    excess = (gradients.norm(dim=1) - clip_norm).clamp_min(0)
    return Oracle("clipping residual E(‖g‖ − C)₊", float(excess.mean()))


def mask_then_clip_gap(gradients: Tensor, active: Tensor, clip_norm: float) -> Oracle:
    """‖Gᴬ − P_A G‖²: what Proposition 5.1 neglects.

    Gᴬ is the mean of gradients masked to ``active`` (a boolean vector), then clipped, which is what the
    algorithm releases; P_A G is the mean of gradients clipped whole, then masked, which is what the
    proposition reasons about.
    """
    _check_gradients(gradients, clip_norm)
    released = clip_rows(gradients * active, clip_norm).mean(dim=0)
    assumed = clip_rows(gradients, clip_norm).mean(dim=0) * active
    return Oracle("mask-then-clip gap ‖Gᴬ − P_A G‖²", float((released - assumed).square().sum()))


def clip_rows(gradients: Tensor, clip_norm: float) -> Tensor:
    """Each row scaled to norm at most ``clip_norm``; a zero row stays zero."""
    _check_gradients(gradients, clip_norm)
    norms = gradients.norm(dim=1, keepdim=True)
    return gradients * torch.clamp(clip_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny), max=1.0)


def _check_gradients(gradients: Tensor, clip_norm: float) -> None:
    check_positive("The clip norm", clip_norm)
    if gradients.ndim != 2 or len(gradients) == 0:
        raise ArgumentError(
            f"Per-example gradients must be a non-empty matrix of examples × coordinates, got shape "
            f"{tuple(gradients.shape)}."
        )
