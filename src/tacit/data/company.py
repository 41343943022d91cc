"""What is computed for one example must not tell of its company."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def same_sized(function: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """``function`` of at most ``size`` rows, called with exactly so many, the last ones zero.

    Libraries round a product differently when it has another number of rows. The vector of one example must not tell
    how many others there are.
    """
    missing = size - len(rows)
    if not missing:
        return function(rows)
    return function(torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]))[: len(rows)]
