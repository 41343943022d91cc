"""Lemma 6.4: the bias that clipping leaves in the mean gradient, and its bound.

All of these read raw per-example gradients and are therefore oracles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_positive
from tacit.theory.oracle import Oracle


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
