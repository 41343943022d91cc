"""Per-example gradients of one parameter, kept from the norm to the sum."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tacit.raw.exact import squared_norms, sum_of_rows

PIECE = 1 << 22
"""Elements of one piece: 16 MB in single precision. The C library maps blocks of 32 MB and more afresh each time, and
touching fresh pages costs far more than the copy."""


class Kept:
    """A matrix (examples, active coordinates) in pieces of bounded size.

    It is filled by ranges of at most ``step`` examples, each starting at a multiple of ``step``.
    """

    def __init__(self, examples: int, width: int, step: int, like: Tensor) -> None:
        self._rows = step * max(1, PIECE // max(1, step * width))
        starts = range(0, examples, self._rows)
        self._pieces = [like.new_empty(min(self._rows, examples - start), width) for start in starts]

    def part(self, start: int, stop: int) -> Tensor:
        """The rows of a range, to be filled."""
        first = start - start % self._rows
        return self._pieces[start // self._rows][start - first : stop - first]

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Consecutive ranges of the examples ``start`` to ``stop``, each within one piece."""
        while start < stop:
            end = min(stop, start - start % self._rows + self._rows)
            yield start, end
            start = end

    def weighted_sum(self, weights: Tensor, *, absolute: bool = False) -> Tensor:
        """Σᵢ wᵢ gᵢ, or Σᵢ wᵢ |gᵢ|, in double precision."""
        parts = [
            sum_of_rows(w, piece, absolute=absolute)
            for w, piece in zip(torch.split(weights, self._rows), self._pieces, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def weighted_row_norms(self, weights: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """Σᵢ wᵢ ‖gᵢ[·, r, ·]‖ for every r, where a row of the matrix has this shape."""
        total: Tensor | None = None
        for w, piece in zip(torch.split(weights, self._rows), self._pieces, strict=True):
            lines = piece.view(len(piece), *shape).movedim(2, 1)
            squares = squared_norms(lines.reshape(-1, lines.shape[2] * lines.shape[3]))
            part = w.double() @ squares.sqrt_().view(lines.shape[:2])
            total = part if total is None else total + part
        assert total is not None
        return total
