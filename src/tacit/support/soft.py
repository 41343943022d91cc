"""Soft supports: columns with signal move faster and the others slower, with no more noise than before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.support.block import Block
from tacit.theory import choose_standing, common_directions, detect, floor_weight, signal_share

MOST = 0.75
"""If columns that do not stand out deserve this weight, weighting is not worth it, and the layer stays as it is."""
FASTEST = 3.0
"""No column moves more than so many times as fast as without weights, so that training stays stable."""
_WORTH = 3.0
"""Signal counts so much more than noise of the same energy: noise on inputs that vary little does hardly any harm."""
_ROUNDS = 4
"""So often the columns' common directions are sought, each time with the weights that the last ones gave."""


@dataclass(frozen=True)
class _Seen:
    """The energies by which columns are judged: of ``members`` numbers each, which see a share of the signal."""

    energies: Tensor
    members: int
    share: float


def soft_blocks(sums: Mapping[str, Tensor], noise_variance: float, growth: float) -> dict[str, Block]:
    """A block for each parameter, by what its columns show against their noise.

    Columns are weighted by their share of signal, but by no less than what those that do not stand out may deserve
    together (``theory.floor_weight``). Where that is ``MOST`` or more, and for vectors, all weights are 1. Where it is
    shown that silencing those that do not stand out would help over the whole run, the lower bound is lower: signal
    then counts no more than noise. Signal is looked for along the directions that columns share, where there are any:
    see ``theory.directions``.

    Only the differences between columns are evidence. How far all of them move is decided by the learning rate, so
    the weights' mean square is 1, which leaves training as much noise as it had, unless a column would move more than
    ``FASTEST`` times as fast.

    ``sums`` are released gradients summed over steps, with noise of ``noise_variance`` on every coordinate; over the
    whole run the ratio of signal to noise energy is ``growth`` times as large.
    """
    return {
        name: _block(total, noise_variance, growth)
        if total.dim() > 1 and noise_variance
        else Block.all(total.shape)
        for name, total in sums.items()
    }


def _block(total: Tensor, noise_variance: float, growth: float) -> Block:
    columns = total.movedim(1, 0).flatten(1).double().cpu()
    seen = _seen(columns, noise_variance)
    detection = detect(seen.energies, seen.members, noise_variance)
    shown = not choose_standing([detection], growth).dense
    if not shown:
        growth *= _WORTH
    floor = floor_weight(detection, growth, seen.share)
    if floor >= MOST:
        return Block.all(total.shape)
    share = signal_share(seen.energies, seen.members, noise_variance, seen.share, growth)
    return Block.weighted(total.shape, _level(_relative(share).clamp(min=floor)), 1)


def _level(weights: Tensor) -> Tensor:
    """The weights times the factor that makes their mean square 1, or the largest of them ``FASTEST``."""
    weights = weights.double()
    return weights * min(float(weights.square().mean().rsqrt()), FASTEST / float(weights.max()))


def _seen(columns: Tensor, noise_variance: float) -> _Seen:
    """Energies of columns (rows of ``columns``) along common directions, or else all of their energy."""
    seen = _Seen(columns.square().sum(1), columns.shape[1], 1.0)
    found = common_directions(columns, noise_variance, torch.ones(len(columns)))
    for _ in range(_ROUNDS):
        if found is None:
            break
        seen = _Seen(found.energies, found.count, found.seen)
        weights = _relative(signal_share(found.energies, found.count, noise_variance, found.seen))
        found = common_directions(columns, noise_variance, weights.clamp(min=1e-3), found.count)
    return seen


def _relative(share: Tensor) -> Tensor:
    best = float(share.max())
    return (share / best).clamp(max=1) if best > 0 else torch.ones_like(share)


def effective_share(block: Block) -> float:
    """(Σw²)² / Σw⁴ as a share of all: how many coordinates there are in effect."""
    if block.weights is None:
        return block.size / block.total
    squares = block.weights.values.double().square()
    return float(squares.sum() ** 2 / squares.square().sum() / len(squares))
