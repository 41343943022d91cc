"""How much gradient energy a support captures: estimated from released values, or measured by an oracle.

How much gradient energy would a support capture? A private estimate without selection bias.

The warm-up's released gradients are dealt to two to four folds (step t to fold t mod K, so that all see the
same drift). With one fold held out, coordinates are ranked on the others, and energy is measured on the
held-out mean alone:

- its square minus its noise variance is unbiased for the squared mean gradient, *given* the ranking, since
  the noise of the two is independent. Measured on the ranking's own data, the selected noise would count as
  signal;
- the product of the two means needs no debiasing, but is biased once coordinates were selected by one of
  them (it understates what is left outside), so it is not used.

Every fold is held out once and the estimates are averaged. The support finally chosen ranks on all the folds,
so as a rule it captures more than estimated here: the estimate errs to the safe side. More folds rank better
and measure worse; four find smaller supports when the signal is clear, two when it is weak.

The held-out mean also holds the noise of mini-batch sampling, which is not subtracted. It adds energy
everywhere alike, so it speaks for a larger support.

Support quality (Section 7.4, Definition 6.5): proxy capture, oracle capture, trajectory capture.

A support is given as a boolean vector over the coordinates. A random support of the same size captures k/d in
expectation, whichever of the three is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_non_negative


@dataclass(frozen=True, repr=False)
class Oracle:
    """A figure computed from raw gradients, outside every privacy guarantee, for analysis after the fact.

    It deliberately is no number: it cannot be added, compared, formatted as a float or serialised without
    writing ``not_private_value``, and whatever prints it prints the warning. Nothing in training accepts
    one.
    """

    name: str
    not_private_value: float

    def __str__(self) -> str:
        return f"{self.name} = {self.not_private_value:.6g} [NOT PRIVATE: computed from raw gradients]"

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise TypeError(f"{self} must not decide anything.")


_BUCKET_BITS = 17
_CHUNK = 1 << 22
_OVERLAP = 1.5
"""Folds share ranking data, so their errors correlate: in simulation the variance of the mean of up to four
folds was at most this much above that of independent ones (see the tests)."""


@dataclass(frozen=True)
class WarmupFold:
    """What a share of the warm-up released: the per-coordinate sum of its gradients, and how noisy it is."""

    gradient_sum: Tensor
    """Σₜ g̃ₜ over the fold's steps, flat, released values only"""
    steps: int
    noise_variance: float
    """ν² = (σC/B)² of one step, or its mean over the fold's steps"""

    def __post_init__(self) -> None:
        check_count("The number of steps of a fold", self.steps)
        check_non_negative("The noise variance of a fold", self.noise_variance)
        if self.gradient_sum.ndim != 1 or self.gradient_sum.numel() == 0:
            raise ArgumentError("The gradient sum of a fold must be a flat, non-empty vector.")


@dataclass(frozen=True)
class CaptureEstimate:
    """Estimated energy inside and outside the k best-ranked coordinates, for a grid of k up to d."""

    counts: Tensor
    """the grid of k, increasing, its last entry d"""
    captured: Tensor
    uncaptured: Tensor
    captured_variance: Tensor
    uncaptured_variance: Tensor

    @property
    def dimension(self) -> int:
        """d"""
        return int(self.counts[-1])

    @property
    def total(self) -> float:
        """The estimated energy of all coordinates; unbiased, hence at times negative without signal."""
        return float(self.captured[-1])

    @property
    def total_std(self) -> float:
        """The standard deviation of :attr:`total`."""
        return math.sqrt(float(self.captured_variance[-1]))

    def share(self, count: int) -> float:
        """The estimated share of energy that the ``count`` best-ranked coordinates capture."""
        at = int(torch.searchsorted(self.counts, count).clamp(max=len(self.counts) - 1))
        return float(self.captured[at]) / self.total if self.total > 0 else 0.0


def split_capture(folds: Sequence[WarmupFold]) -> CaptureEstimate:
    """The mean of held-out estimates, ranking by the absolute gradient sum of the other folds."""
    if not 2 <= len(folds) <= 4:
        raise ArgumentError(f"The capture estimate needs two to four folds of the warm-up, got {len(folds)}.")
    if len({fold.gradient_sum.numel() for fold in folds}) > 1:
        raise ArgumentError("All folds of a warm-up must cover the same coordinates.")
    everything = sum((fold.gradient_sum for fold in folds[1:]), start=folds[0].gradient_sum.clone())
    return average_estimates(
        [held_out_capture((everything - fold.gradient_sum).abs_(), fold) for fold in folds]
    )


def held_out_capture(ranking: Tensor, held_out: WarmupFold) -> CaptureEstimate:
    """The estimate for supports that take the largest values of ``ranking`` first.

    ``ranking`` is any released score whose noise is independent of ``held_out``. Given it, the estimates
    are unbiased for Σμ² over each support, μ being the mean gradient of the held-out steps, with variance
    Σ(2s⁴ + 4s²μ²), s² = ν²/steps.

    Linear in d: coordinates are counted into 2¹⁷ buckets by the leading bits of their score (8 bits of
    mantissa), and those in one bucket count as tied, in random order. Beyond the inputs it takes about
    200 MB, whatever d is.
    """
    d = held_out.gradient_sum.numel()
    if ranking.shape != held_out.gradient_sum.shape:
        raise ArgumentError(
            f"The ranking must be a flat vector of {d} scores, got shape {tuple(ranking.shape)}."
        )
    members = torch.zeros(1 << _BUCKET_BITS, dtype=torch.float64)
    squares = torch.zeros_like(members)
    for scores, sums in zip(_chunks(ranking), _chunks(held_out.gradient_sum), strict=True):
        bucket = _bucket(scores)
        members += torch.bincount(bucket, minlength=len(members)).cpu()
        means = sums.double() / held_out.steps
        squares += torch.bincount(bucket, weights=means.square(), minlength=len(members)).cpu()
    if not math.isfinite(float(squares.sum())):
        raise ArgumentError("The gradient sum of a fold holds values that are not finite.")
    occupied = members.nonzero().flatten().flip(0)
    counts = _grid(d)
    energy = _interpolate(counts, members[occupied].cumsum(0), squares[occupied].cumsum(0))
    s2 = held_out.noise_variance / held_out.steps
    captured = energy - counts * s2
    uncaptured = energy[-1] - energy - (d - counts) * s2
    return CaptureEstimate(
        counts=counts,
        captured=captured,
        uncaptured=uncaptured,
        captured_variance=2 * counts * s2**2 + 4 * s2 * captured.clamp_min(0),
        uncaptured_variance=2 * (d - counts) * s2**2 + 4 * s2 * uncaptured.clamp_min(0),
    )


def average_estimates(estimates: Sequence[CaptureEstimate]) -> CaptureEstimate:
    """The mean of held-out estimates, its variance enlarged for the ranking data they share."""
    n = len(estimates)
    factor = (1.0 if n == 1 else _OVERLAP) / n**2
    return CaptureEstimate(
        counts=estimates[0].counts,
        captured=torch.stack([e.captured for e in estimates]).mean(0),
        uncaptured=torch.stack([e.uncaptured for e in estimates]).mean(0),
        captured_variance=factor * torch.stack([e.captured_variance for e in estimates]).sum(0),
        uncaptured_variance=factor * torch.stack([e.uncaptured_variance for e in estimates]).sum(0),
    )


def _chunks(values: Tensor) -> Iterator[Tensor]:
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def _bucket(scores: Tensor) -> Tensor:
    if not bool(torch.isfinite(scores).all()):
        raise ArgumentError("The ranking holds scores that are not finite.")
    # A float's bit pattern, read as an integer, sorts like the float itself once negative ones are mirrored.
    # Adding zero turns -0.0 into 0.0.
    bits = (scores.float() + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered >> (32 - _BUCKET_BITS)).long() + (1 << (_BUCKET_BITS - 1))


def _grid(dimension: int) -> Tensor:
    geometric = torch.logspace(0, math.log10(dimension), 1000, dtype=torch.float64)
    linear = torch.linspace(0, dimension, 401, dtype=torch.float64)[1:]
    grid = torch.cat([geometric, linear]).round().long().clamp(1, dimension)
    return torch.tensor(sorted({*grid.tolist(), dimension}))


def _interpolate(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The piecewise linear function through (0, 0) and the points (x, y), read off at ``at``."""
    x, y = torch.cat([x.new_zeros(1), x]), torch.cat([y.new_zeros(1), y])
    right = torch.searchsorted(x, at.to(x.dtype)).clamp(1, len(x) - 1)
    left = right - 1
    return y[left] + (y[right] - y[left]) * (at - x[left]) / (x[right] - x[left])


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
