"""Gradients of an embedding table: few rows per example, so they are held sparsely."""

from __future__ import annotations

import copy
import weakref

import torch
from torch import Tensor

from tacit.raw.exact import Share, squared_norms
from tacit.raw.gradients.base import Norms, PerExampleGradient
from tacit.support import Block, Kind, Weights


class Embedding(PerExampleGradient):
    """Token ids (examples, positions) and output gradients (examples, positions, width)."""

    def __init__(self, ids: Tensor, b: Tensor, rows: int, padding: int | None) -> None:
        self.examples, positions = ids.shape
        self.table_rows = rows
        example = torch.arange(self.examples, device=ids.device)[:, None].expand(-1, positions)
        key, gradients = (example * rows + ids).flatten(), b.flatten(0, 1)
        if padding is not None:
            real = ids.flatten() != padding
            key, gradients = key[real], gradients[real]
        unique, inverse = torch.unique(key, return_inverse=True)
        # One row for every (example, token) pair that occurs; repeated tokens are summed before any norm.
        self.gradients = b.new_zeros(len(unique), b.shape[-1]).index_add_(0, inverse, gradients)
        self.token, self.example = unique % rows, unique // rows

    def regrouped(self, owner: Tensor, units: int) -> Embedding:
        """The gradients of units, where ``owner`` is the unit of every example."""
        use = copy.copy(self)
        unique, inverse = torch.unique(
            owner[self.example] * self.table_rows + self.token, return_inverse=True
        )
        use.gradients = self.gradients.new_zeros(len(unique), self.gradients.shape[1]).index_add_(
            0, inverse, self.gradients
        )
        use.examples, use.token, use.example = units, unique % self.table_rows, unique // self.table_rows
        return use

    def weighted(self, weights: Weights) -> Embedding:
        values = weights.values.to(self.gradients.device, self.gradients.dtype)
        use = copy.copy(self)
        use.gradients = self.gradients * (values[self.token, None] if weights.axis == 0 else values)
        return use

    def per_example(self, start: int, stop: int) -> Tensor:
        dense = self.gradients.new_zeros(stop - start, self.table_rows, self.gradients.shape[1])
        chosen = (self.example >= start) & (self.example < stop)
        dense[self.example[chosen] - start, self.token[chosen]] = self.gradients[chosen]
        return dense

    def forming_error(self) -> Tensor:
        mass = self._squares().sqrt_()
        return torch.stack([torch.zeros_like(mass), mass])

    def masked_error(self, block: Block) -> Tensor:
        masked = copy.copy(self)
        masked._mask(block)
        return masked.forming_error()

    def norms(self, block: Block) -> Norms:
        self._mask(block)
        return Norms.exact(self._squares())

    def weighted_sum(self, weights: Tensor, block: Block, allowance: Share | None = None) -> Tensor:
        return self._sum(self.gradients * weights.double()[self.example, None], block)

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        return self._sum(self.gradients.abs() * weights.double()[self.example, None], block)

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        norms = squared_norms(self.gradients).sqrt_() * weights.double()[self.example]
        return norms.new_zeros(self.table_rows).index_add_(0, self.token, norms)

    def _squares(self) -> Tensor:
        squares = squared_norms(self.gradients)
        return squares.new_zeros(self.examples).index_add_(0, self.example, squares)

    def _mask(self, block: Block) -> None:
        """Drop what is silent, so that the norm and the sum see active coordinates only."""
        if block.kind is Kind.ROWS:
            active = torch.zeros(self.table_rows, dtype=torch.bool, device=self.token.device)
            active[block.index.to(active.device)] = True
            chosen = active[self.token]
            self.gradients, self.token, self.example = (
                self.gradients[chosen],
                self.token[chosen],
                self.example[chosen],
            )
        elif block.kind is Kind.COORDINATES:
            self.gradients = self.gradients * _active(block, self.token.device)[self.token]

    def _sum(self, rows: Tensor, block: Block) -> Tensor:
        index = block.index.to(self.token.device)
        total = rows.new_zeros(block.compact_shape)
        match block.kind:
            case Kind.ALL:
                return total.index_add_(0, self.token, rows)
            case Kind.ROWS:
                place = torch.searchsorted(index, self.token)
                inside = index[place.clamp(max=len(index) - 1)] == self.token
                return total.index_add_(0, place[inside], rows[inside])
            case _:
                row, column = _active(block, self.token.device)[self.token].nonzero(as_tuple=True)
                place = torch.searchsorted(index, self.token[row] * block.shape[1] + column)
                return total.index_add_(0, place, rows[row, column])


_masks: weakref.WeakKeyDictionary[Block, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def _active(block: Block, device: torch.device) -> Tensor:
    """The block as a boolean table, built once per block and device."""
    by_device = _masks.setdefault(block, {})
    if device not in by_device:
        by_device[device] = block.mask().to(device)
    return by_device[device]
