"""Soft supports: weights for columns, from released gradients, in place of a choice between all and nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tacit.support.block import Block
from tacit.theory import signal_share

LEAST = 1e-3
"""No weight is smaller: a column keeps a chance, and its noise is a thousandth."""


def soft_blocks(model: nn.Module, sums: Mapping[str, Tensor], noise_variance: float) -> dict[str, Block]:
    """Blocks with all coordinates, each column weighted by its share of signal relative to its layer's best.

    ``sums`` are released gradients summed over steps, with noise of ``noise_variance`` on every coordinate. Only the
    ratio of weights within a layer counts, so the best column of each has weight 1. Vectors stay as they are.
    """
    tokens = {
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    blocks = {}
    for name, total in sums.items():
        if total.dim() < 2 or not noise_variance:
            blocks[name] = Block.all(total.shape)
            continue
        axis = 0 if name in tokens else 1
        energies = total.movedim(axis, 0).flatten(1).double().square().sum(1)
        share = signal_share(energies.cpu(), total.numel() // total.shape[axis], noise_variance)
        best = float(share.max())
        weights = (share / best).clamp(LEAST, 1) if best > 0 else torch.ones_like(share)
        blocks[name] = Block.weighted(total.shape, weights, axis)
    return blocks


def effective_share(block: Block) -> float:
    """(Σw²)² / Σw⁴ as a share of all: how many coordinates there are in effect."""
    if block.weights is None:
        return 1.0
    squares = block.weights.values.double().square()
    return float(squares.sum() ** 2 / squares.square().sum() / len(squares))
