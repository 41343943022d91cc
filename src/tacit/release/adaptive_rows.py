"""Embedding rows that every step chooses again: noisy counts of its examples decide which rows get a gradient.

A step answers two questions about the same examples: which rows they look up, each example's votes clipped together to
norm 1, and what the gradient is. Row by row, the count gets noise, and where it reaches the threshold the row is
chosen; chosen rows get their gradient with noise, the others nothing. Rows that no example touches have the count 0, so
each is chosen with one known probability: how far it is to the next such row is geometric, and nothing walks over the
table.

Both answers together are one Gaussian mechanism. With noise multipliers s for the counts and g for the gradients, and
1/s² + 1/g² = 1/σ², the answers are no better to tell neighbours apart by than one of multiplier σ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.special import log_ndtr
from torch import Tensor, nn

from tacit.errors import check_positive, check_share
from tacit.raw.row_tables import RowSum, check_ids
from tacit.release.noise import Noise, lattice


def multipliers(sigma: float, share: float) -> tuple[float, float]:
    """The noise multipliers of counts and of gradients that together are as private as ``sigma``.

    ``share`` f says how the two divide: with r = f/(1 − f) they are σ√(1 + r²) and σ√(1 + r²)/r, so at one half both
    are σ√2, and towards one counts get noisier and gradients come closer to σ.
    """
    ratio = check_share("selection_share", share, one_allowed=False)
    ratio = ratio / (1 - ratio)
    both = sigma * math.sqrt(1 + ratio**2)
    return both, both / ratio


class AdaptiveTable:
    """A table of which every step moves the rows that its noisy counts choose.

    ``threshold`` is what a noisy count must reach, in standard deviations of its noise; an example that looks up n rows
    gives each 1/√n. ``rate`` is the learning rate of the table in the step that is being made. What the parameter holds
    is always public.
    """

    counted = True

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        noise: Noise,
        rate: Callable[[], float],
        threshold: float,
    ) -> None:
        self.name = name
        self._parameter, self._noise, self._rate = parameter, noise, rate
        self._threshold = check_positive("threshold", threshold)

    def read(self, ids: Tensor) -> Tensor:
        """The rows ``ids``."""
        check_ids(self.name, ids, len(self._parameter))
        return nn.functional.embedding(ids, self._parameter.detach())

    def settle(self) -> None:
        """Nothing is owed."""

    def choose(self, counts: RowSum, scale: float) -> Tensor:
        """The rows whose count plus N(0, scale²) reaches the threshold, sorted; without noise all that occur."""
        least = self._threshold * scale
        found = [torch.zeros(0, dtype=torch.int64, device=counts.index.device)]
        for index, values in counts.tiles():
            noisy = values[:, 0].contiguous()
            self._noise.add(noisy, scale, 1.0)
            found.append(index[noisy >= least])
        jumps = self._jumps(len(self._parameter) - len(counts.index), _chance(least, scale))
        # The k-th untouched row lies behind the touched rows whose number, less those before them, is at most k.
        touched = counts.index.cpu()
        before = torch.searchsorted(touched - torch.arange(len(touched)), jumps, right=True)
        return torch.cat([*found, (jumps + before).to(counts.index.device)]).sort().values

    @torch.no_grad()
    def move(self, total: RowSum, chosen: Tensor, scale: float, batch_size: int) -> None:
        """Chosen rows ← rows − rate · (total + N(0, scale²)) / batch_size; the others stay."""
        rate = self._rate()
        for index, values in total.on(chosen):
            self._noise.add(values, scale, 1 / batch_size)
            self._parameter.index_add_(0, index, values.to(self._parameter.dtype), alpha=-rate)

    def _jumps(self, places: int, chance: float) -> Tensor:
        """Places below ``places``, each taken independently with probability e^``chance``, sorted."""
        if chance == -math.inf or not places:
            return torch.zeros(0, dtype=torch.int64)
        found: list[Tensor] = []
        at, expected = -1, places * math.exp(chance)
        staying = math.log1p(-math.exp(chance))
        while at < places:
            count = int(expected + 4 * math.sqrt(expected) + 16)
            uniform = 1.0 - self._noise.uniform(count)  # in (0, 1]
            gaps = (uniform.log() / staying).floor().clamp(max=float(places)) + 1
            reached = at + gaps.cumsum(0)
            found.append(reached[reached < places].long())
            at = int(reached[-1])
        return torch.cat(found)


def _chance(threshold: float, scale: float) -> float:
    """The logarithm of the probability that noise alone, rounded to its lattice, reaches the threshold."""
    if not scale:
        return -math.inf
    step = lattice(scale)
    least = (math.ceil(threshold / step) - 0.5) * step
    return float(log_ndtr(-least / scale))
