"""The theory of coordinate-sparse private training as functions of public numbers and released values.

Results that need raw gradients return an :class:`Oracle`, marked NOT PRIVATE.
"""

from tacit.theory.capture import (
    CaptureEstimate,
    WarmupFold,
    average_estimates,
    held_out_capture,
    split_capture,
)
from tacit.theory.clipping import clip_rows, clipping_bias, clipping_residual, mask_then_clip_gap
from tacit.theory.convergence import (
    StationarityBound,
    effective_noise_dimension,
    full_stationarity,
    projected_stationarity,
)
from tacit.theory.criterion import (
    break_even_energy,
    full_error,
    random_silent_energy,
    restricted_error,
    restriction_helps,
    worth_keeping,
)
from tacit.theory.diagnostics import oracle_capture, proxy_capture, trajectory_capture
from tacit.theory.directions import CommonDirections, common_directions
from tacit.theory.misranking import (
    misranking_bernstein,
    misranking_chebyshev,
    misranking_exact,
    misranking_subgaussian,
)
from tacit.theory.noise import noise_std
from tacit.theory.oracle import Oracle
from tacit.theory.quadratic import active_excess_loss, keep_threshold, silent_excess_loss
from tacit.theory.ratio import RatioChoice, choose_active
from tacit.theory.score import debiased_score, score_variance
from tacit.theory.shrinkage import signal_share

__all__ = [
    "CaptureEstimate",
    "CommonDirections",
    "Oracle",
    "RatioChoice",
    "StationarityBound",
    "WarmupFold",
    "active_excess_loss",
    "average_estimates",
    "break_even_energy",
    "choose_active",
    "clip_rows",
    "clipping_bias",
    "clipping_residual",
    "common_directions",
    "debiased_score",
    "effective_noise_dimension",
    "full_error",
    "full_stationarity",
    "held_out_capture",
    "keep_threshold",
    "mask_then_clip_gap",
    "misranking_bernstein",
    "misranking_chebyshev",
    "misranking_exact",
    "misranking_subgaussian",
    "noise_std",
    "oracle_capture",
    "projected_stationarity",
    "proxy_capture",
    "random_silent_energy",
    "restricted_error",
    "restriction_helps",
    "score_variance",
    "signal_share",
    "silent_excess_loss",
    "split_capture",
    "trajectory_capture",
    "worth_keeping",
]
