"""Support quality (Section 7.4, Definition 6.5): proxy capture, oracle capture, trajectory capture.

A support is given as a boolean vector over the coordinates. A random support of the same size captures k/d in
expectation, whichever of the three is measured.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tacit.errors import ArgumentError
from tacit.theory.oracle import Oracle


def proxy_capture(score: Tensor, active: Tensor) -> float:
    """ρ̂_sig(A) = Σ_A max(a, 0) / Σ max(a, 0), the share of positive released score inside A; 0 if none.

    Private, as it reads released scores only, but not evidence of quality when A was chosen by the same
    score: the noise that lifted a coordinate into A is then counted as its signal.
    :func:`tacit.theory.split_capture` is the honest private estimate.
    """
    return _share(score.clamp_min(0), active)


def oracle_capture(gradient: Tensor, active: Tensor) -> Oracle:
    """α̂_oracle = Σ_A Ĝ² / Σ Ĝ², the share of a noiseless gradient's energy inside the support; 0 if none."""
    return Oracle("oracle capture α̂", _share(gradient.square(), active))


def trajectory_capture(trajectory: Iterable[tuple[Tensor, Tensor]]) -> Oracle:
    """α_T = Σₜ ‖Pₜ∇L(θₜ)‖² / Σₜ ‖∇L(θₜ)‖² over phase 2's pairs (noiseless gradient, active); 1 if all zero.

    A ratio of sums, as in Definition 6.5, not a mean of ratios: steps with a large gradient weigh more.
    """
    captured = total = 0.0
    for gradient, active in trajectory:
        _check_support(gradient, active)
        energy = gradient.double().square()
        captured += float(energy[active].sum())
        total += float(energy.sum())
    return Oracle("trajectory capture α_T", captured / total if total > 0 else 1.0)


def _share(energy: Tensor, active: Tensor) -> float:
    _check_support(energy, active)
    total = float(energy.sum(dtype=torch.float64))
    return float(energy[active].sum(dtype=torch.float64)) / total if total > 0 else 0.0


def _check_support(values: Tensor, active: Tensor) -> None:
    if active.dtype is not torch.bool or active.shape != values.shape:
        raise ArgumentError(
            f"The support must be a boolean tensor of shape {tuple(values.shape)}, "
            f"got {active.dtype} of shape {tuple(active.shape)}."
        )
