"""Synthetic warm-ups whose signal is known, to judge the capture estimate and the chosen active ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.theory.capture import WarmupFold


def spikes(share: float, dimension: int) -> Tensor:
    """A gradient of energy 1, spread equally over a share of the coordinates; the others are useless."""
    signal = torch.zeros(dimension, dtype=torch.float64)
    useful = round(share * dimension)
    signal[:useful] = useful**-0.5
    return signal


def power_law(dimension: int, exponent: float = 0.6) -> Tensor:
    """A gradient of energy 1 whose sorted magnitudes fall like rank^(−exponent)."""
    signal = torch.arange(1, dimension + 1, dtype=torch.float64).pow(-exponent)
    return signal / signal.square().sum().sqrt()


def warm_up(
    signal: Tensor, *, noise: float, folds: int, seed: int, steps: int = 6
) -> tuple[list[WarmupFold], Tensor]:
    """A warm-up of ``steps`` steps per fold under the additive model, and the mean of all its releases.

    ``noise`` is the noise variance per coordinate of that mean, whatever the number of folds.
    """
    generator = torch.Generator().manual_seed(seed)
    variance = noise * steps * folds
    sums = [
        steps * signal
        + (variance * steps) ** 0.5 * torch.randn(len(signal), generator=generator, dtype=torch.float64)
        for _ in range(folds)
    ]
    mean = torch.stack(sums).sum(0) / (steps * folds)
    return [WarmupFold(s.float(), steps, variance) for s in sums], mean


def true_capture(signal: Tensor, ranking: Tensor, count: int) -> float:
    """The share of the signal's energy in the ``count`` best-ranked coordinates; 1 without signal."""
    total = float(signal.square().sum())
    return float(signal[ranking.topk(count).indices].square().sum()) / total if total > 0 else 1.0
