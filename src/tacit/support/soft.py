"""Soft supports: weights for columns, from released gradients, in place of a choice between all and nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.support.block import Block
from tacit.theory import common_directions, signal_share

LEAST = 1e-3
"""No weight is smaller: a column keeps a chance, and its noise is a thousandth."""
_ROUNDS = 4
"""So often the columns' common directions are sought, each time with the weights that the last ones gave."""


def soft_blocks(sums: Mapping[str, Tensor], noise_variance: float) -> dict[str, Block]:
    """Blocks with all coordinates, each column weighted by its share of signal relative to its layer's best.

    Signal is looked for along the directions that columns share, where there are any: see ``theory.directions``.
    ``sums`` are released gradients summed over steps, with noise of ``noise_variance`` on every coordinate. Only the
    ratio of weights within a layer counts, so the best column of each has weight 1. Vectors stay as they are.
    """
    blocks = {}
    for name, total in sums.items():
        if total.dim() < 2 or not noise_variance:
            blocks[name] = Block.all(total.shape)
            continue
        columns = total.movedim(1, 0).flatten(1).double().cpu()
        blocks[name] = Block.weighted(total.shape, _weights(columns, noise_variance), 1)
    return blocks


def _weights(columns: Tensor, noise_variance: float) -> Tensor:
    """Weights of columns (rows of ``columns``): by their energy along common directions, or else by all of it."""
    weights = _relative(signal_share(columns.square().sum(1), columns.shape[1], noise_variance))
    found = common_directions(columns, noise_variance, torch.ones(len(columns)))
    for _ in range(_ROUNDS):
        if found is None:
            break
        weights = _relative(signal_share(found.energies, found.count, noise_variance, found.seen))
        found = common_directions(columns, noise_variance, weights, found.count)
    return weights


def _relative(share: Tensor) -> Tensor:
    best = float(share.max())
    return (share / best).clamp(LEAST, 1) if best > 0 else torch.ones_like(share)


def effective_share(block: Block) -> float:
    """(Σw²)² / Σw⁴ as a share of all: how many coordinates there are in effect."""
    if block.weights is None:
        return 1.0
    squares = block.weights.values.double().square()
    return float(squares.sum() ** 2 / squares.square().sum() / len(squares))
