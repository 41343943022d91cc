"""Gradients of an embedding table: few rows per example, so they are held sparsely."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacit.raw.exact import Share, squared_norms
from tacit.raw.gradients.base import Norms, PerExampleGradient, Several
from tacit.raw.row_tables import RowSum, Terms
from tacit.support import Block, Kind, Weights


class Embedding(PerExampleGradient):
    """Token ids (examples, positions) and output gradients (examples, positions, width).

    There is one gradient for every (token, example) pair that occurs, sorted by token and then by example: ``counts``
    times the vector of its ``sources``.
    Where all positions of an example have the same output gradient, as under a mean or a sum over them, that vector is
    the example's, and no gradient is formed.

    How many pairs occur is known to a device alone, so that the host would have to wait for it. There is a place for
    every position instead, and ``_occurs`` says which of the places are taken; the gradients of the others are zero.
    """

    def __init__(self, ids: Tensor, b: Tensor, rows: int, padding: int | None) -> None:
        self.examples, positions = ids.shape
        self.table_rows = rows
        example = torch.arange(self.examples, device=ids.device)[:, None].expand(-1, positions)
        key = (ids * self.examples + example).flatten()
        real = None if padding is None else ids.flatten() != padding
        self._occurs: Tensor | None = None
        if _waits_for(ids.device):
            self._add_up(key if real is None else key.where(real, self._nobody), b.flatten(0, 1))
            return
        if positions > 1 and _same_at_all_positions(b):
            unique, counts = torch.unique(key if real is None else key[real], return_counts=True)
            self.token, self.example = unique // self.examples, unique % self.examples
            self._vectors, self._sources, self._counts = b[:, 0], self.example, counts.double()
            return
        gradients = b.flatten(0, 1)
        if real is not None:
            key, gradients = key[real], gradients[real]
        self._add_up(key, gradients)

    def _add_up(self, key: Tensor, gradients: Tensor) -> None:
        """One gradient for every pair that occurs; repeated tokens are summed before any norm.

        They are summed in double precision and rounded once, so that an example has the same gradient, but for that,
        as where the company of others lets it be formed from one vector.
        """
        if _waits_for(key.device):
            self._add_up_in_places(key, gradients)
            return
        unique, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
        self.token, self.example = unique // self.examples, unique % self.examples
        total = gradients.new_zeros(len(unique), gradients.shape[1]).index_add_(0, inverse, gradients)
        repeated = (counts > 1).nonzero().flatten()
        if len(repeated):
            place = torch.full_like(unique, -1).index_copy_(
                0, repeated, torch.arange(len(repeated)).to(unique)
            )
            where = place[inverse]
            own = (where >= 0).nonzero().flatten()
            exact = torch.zeros(len(repeated), total.shape[1], dtype=torch.float64, device=total.device)
            total[repeated] = exact.index_add_(0, where[own], gradients[own].double()).to(total.dtype)
        self.gradients = total

    def _add_up_in_places(self, key: Tensor, gradients: Tensor) -> None:
        """The same without asking how many pairs occur; positions with the key of nobody count for nothing."""
        ordered, order = key.sort()
        place = (ordered[1:] != ordered[:-1]).cumsum(0)
        place = torch.cat([place.new_zeros(min(1, len(key))), place])
        unique = torch.full_like(key, self._nobody).scatter_(0, place, ordered)
        self._occurs = unique < self._nobody
        unique = unique.where(self._occurs, 0)
        self.token, self.example = unique // self.examples, unique % self.examples
        total = torch.zeros(len(key), gradients.shape[1], dtype=torch.float64, device=key.device)
        total.index_add_(0, place, gradients[order].double())
        self.gradients = total.where(self._occurs[:, None], 0.0).to(gradients.dtype)

    @property
    def _nobody(self) -> int:
        """A key that comes after those of all examples."""
        return self.examples * self.table_rows

    def _keys(self, example: Tensor) -> Tensor:
        key: Tensor = self.token * self.examples + example
        return key if self._occurs is None else key.where(self._occurs, self._nobody)

    @property
    def gradients(self) -> Tensor:
        """The gradient of every pair."""
        if self._counts is None:
            return self._vectors
        repeated: Tensor = self._vectors[self._sources] * self._counts[:, None].to(self._vectors.dtype)
        return repeated

    @gradients.setter
    def gradients(self, gradients: Tensor) -> None:
        self._vectors, self._counts = gradients, None
        self._sources = torch.arange(len(gradients), device=gradients.device)

    @staticmethod
    def joined(uses: Sequence[Embedding]) -> Embedding:
        """One table, looked up several times."""
        if len(uses) == 1:
            return uses[0]
        use = copy.copy(uses[0])
        keys = [part._keys(part.example) for part in uses]
        use._add_up(torch.cat(keys), torch.cat([part.gradients for part in uses]))
        return use

    def regrouped(self, owner: Tensor, units: int) -> Embedding:
        """The gradients of units, where ``owner`` is the unit of every example."""
        use = copy.copy(self)
        use.examples = units
        use._add_up(use._keys(owner[self.example]), self.gradients)
        return use

    def weighted(self, weights: Weights) -> Embedding:
        values = weights.values.to(self.gradients.device, self.gradients.dtype)
        use = copy.copy(self)
        use.gradients = self.gradients * (values[self.token, None] if weights.axis == 0 else values)
        return use

    def per_example(self, start: int, stop: int) -> Tensor:
        dense = self.gradients.new_zeros(stop - start, self.table_rows, self.gradients.shape[1])
        chosen = (self.example >= start) & (self.example < stop)
        chosen = chosen if self._occurs is None else chosen & self._occurs
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
        return self._sum(self._weighted(self._vectors, weights), block)

    def weighted_rows(self, weights: Tensor) -> RowSum:
        """Σᵢ wᵢ gᵢ of a table that is active as a whole, on the rows that occur."""
        shape = (self.table_rows, self._vectors.shape[1])
        return self._row_sum(shape, self._vectors, self._sources, self._factors(weights))

    def weighted_absolute_sum(self, weights: Tensor, block: Block) -> Tensor:
        return self._sum(self._weighted(self._vectors.abs(), weights), block)

    def weighted_row_norms(self, weights: Tensor, block: Block) -> Tensor:
        norms = squared_norms(self._vectors).sqrt_()[self._sources] * self._factors(weights)
        return norms.new_zeros(self.table_rows).index_add_(0, self.token, norms)

    def rows_per_example(self) -> Tensor:
        """How many different rows every example looks up; padding is none."""
        found = torch.zeros(self.examples, dtype=torch.float64, device=self.example.device)
        return found.index_add_(0, self.example, self._taken(found.new_ones(len(self.example))))

    def weighted_counts(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ over the examples i that look a row up, for every row."""
        found = torch.zeros(self.table_rows, dtype=torch.float64, device=self.token.device)
        return found.index_add_(0, self.token, self._taken(weights.double()[self.example]))

    def counts(self, weights: Tensor) -> RowSum:
        """Σᵢ wᵢ over the examples i that look a row up, on the rows that occur."""
        one = torch.ones(1, 1, dtype=torch.float64, device=self.token.device)
        return self._row_sum(
            (self.table_rows, 1), one, torch.zeros_like(self.token), weights.double()[self.example]
        )

    def _row_sum(self, shape: tuple[int, int], vectors: Tensor, sources: Tensor, factors: Tensor) -> RowSum:
        """The sum over pairs of multiples of vectors; a device is asked here which places are taken."""
        taken = slice(None) if self._occurs is None else self._occurs.nonzero().flatten()
        return RowSum(shape, [Terms(self.token[taken], vectors, sources[taken], factors[taken])])

    def _taken(self, numbers: Tensor) -> Tensor:
        """One number for every pair, 0 where there is none."""
        return numbers if self._occurs is None else numbers.where(self._occurs, 0.0)

    def _factors(self, weights: Tensor) -> Tensor:
        """What the vector of every pair is multiplied by, where examples have ``weights``; in double precision."""
        factors = weights.double()[self.example]
        return factors if self._counts is None else factors * self._counts

    def _weighted(self, vectors: Tensor, weights: Tensor) -> Tensor:
        return vectors[self._sources].double().mul_(self._factors(weights)[:, None])

    def _squares(self) -> Tensor:
        squares = squared_norms(self._vectors)[self._sources]
        if self._counts is not None:
            squares = squares * self._counts.square()
        return squares.new_zeros(self.examples).index_add_(0, self.example, squares)

    def _mask(self, block: Block) -> None:
        """Drop what is silent, so that the norm and the sum see active coordinates only."""
        if block.kind is Kind.ROWS:
            active = torch.zeros(self.table_rows, dtype=torch.bool, device=self.token.device)
            active[block.index.to(active.device)] = True
            chosen = active[self.token]
            if self._occurs is not None:
                self.gradients = self.gradients.where(chosen[:, None], 0.0)
                return
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
                if self._occurs is not None:
                    place, rows = place.where(inside, 0), rows.where(inside[:, None], 0.0)
                    return total.index_add_(0, place, rows)
                return total.index_add_(0, place[inside], rows[inside])
            case _ if self._occurs is not None:
                dense = rows.new_zeros(block.shape).index_add_(0, self.token, rows)
                return dense.flatten().index_select(0, index)
            case _:
                row, column = _active(block, self.token.device)[self.token].nonzero(as_tuple=True)
                place = torch.searchsorted(index, self.token[row] * block.shape[1] + column)
                return total.index_add_(0, place, rows[row, column])


def _same_at_all_positions(b: Tensor) -> bool:
    """Whether all positions of every example have the same output gradient; one that is not a number differs."""
    if b.stride(1) == 0:
        return True
    before, after = b.detach()[:, :-1], b.detach()[:, 1:]
    if b.device.type == "cpu" and b.dtype in (torch.float32, torch.float64):
        return np.array_equal(before.numpy(), after.numpy())  # six times as fast as tensor operations
    return bool((before == after).all())


def lookups(use: PerExampleGradient) -> Embedding | None:
    """The lookups of a parameter that may have other uses besides (a tied output layer)."""
    parts = use.uses if isinstance(use, Several) else [use]
    found = [part for part in parts if isinstance(part, Embedding)]
    return Embedding.joined(found) if found else None


def _waits_for(device: torch.device) -> bool:
    """Whether a question about numbers on a device makes the host wait for it."""
    return device.type != "cpu"


_masks: weakref.WeakKeyDictionary[Block, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def _active(block: Block, device: torch.device) -> Tensor:
    """The block as a boolean table, built once per block and device."""
    by_device = _masks.setdefault(block, {})
    if device not in by_device:
        by_device[device] = block.mask().to(device)
    return by_device[device]
