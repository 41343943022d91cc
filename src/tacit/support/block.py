"""The active coordinates of one parameter."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_count


class Kind(Enum):
    """How the active coordinates of a parameter are laid out."""

    ALL = "all"
    SILENT = "silent"
    ROWS = "rows"
    COORDINATES = "coordinates"


@dataclass(frozen=True, eq=False)
class Weights:
    """One positive weight for each entry of dimension ``axis`` of a parameter."""

    values: Tensor
    axis: int

    def spread(self, dimensions: int) -> Tensor:
        """The weights in a shape that multiplies a parameter of that many dimensions."""
        return self.values.view([-1 if dim == self.axis else 1 for dim in range(dimensions)])


@dataclass(frozen=True, eq=False)
class Block:
    """The active coordinates of one parameter of a given shape.

    ``index`` is sorted and without repetition: rows (positions in dimension 0) for ``ROWS``, positions in the
    flattened (row-major) parameter for ``COORDINATES``, empty otherwise. The active values of the parameter, in
    this order, form its *compact* tensor: the parameter itself for ``ALL``, a stack of rows for ``ROWS``, a vector
    for ``COORDINATES``. ``weights`` weight a block of kind ``ALL``: gradients are multiplied by them before they are
    clipped and again when they move the parameter.
    """

    shape: tuple[int, ...]
    kind: Kind
    index: Tensor
    weights: Weights | None = None

    @staticmethod
    def all(shape: Sequence[int]) -> Block:
        """Every coordinate is active."""
        return Block(tuple(shape), Kind.ALL, torch.empty(0, dtype=torch.int64))

    @staticmethod
    def weighted(shape: Sequence[int], values: Tensor, axis: int) -> Block:
        """Every coordinate is active, with a positive weight per entry of dimension ``axis``."""
        values = values.detach().to("cpu", torch.float32).flatten().contiguous()
        if axis not in range(len(shape)) or values.numel() != shape[axis]:
            raise ArgumentError(
                f"A parameter of shape {tuple(shape)} cannot have {values.numel()} weights along dimension {axis}."
            )
        if not bool(((values > 0) & values.isfinite()).all()):
            raise ArgumentError("The weights of a support must be positive and finite.")
        return Block(tuple(shape), Kind.ALL, torch.empty(0, dtype=torch.int64), Weights(values, axis))

    @staticmethod
    def silent(shape: Sequence[int]) -> Block:
        """No coordinate is active."""
        return Block(tuple(shape), Kind.SILENT, torch.empty(0, dtype=torch.int64))

    @staticmethod
    def rows(shape: Sequence[int], rows: Tensor) -> Block:
        """Whole rows (entries of dimension 0) are active."""
        if len(shape) == 0:
            raise ArgumentError(
                "A parameter without dimensions has no rows; name it as always active instead."
            )
        index = _checked_index(rows, shape[0], "row")
        if index.numel() == shape[0]:
            return Block.all(shape)
        return Block(tuple(shape), Kind.ROWS, index) if index.numel() else Block.silent(shape)

    @staticmethod
    def coordinates(shape: Sequence[int], flat: Tensor) -> Block:
        """Single coordinates are active, given as positions in the flattened parameter.

        Positions that form exactly a set of whole rows become ``ROWS`` (or ``ALL``), which is cheaper to train.
        """
        total = math.prod(shape)
        index = _checked_index(flat, total, "coordinate")
        if index.numel() == total:
            return Block.all(shape)
        if not index.numel():
            return Block.silent(shape)
        row_size = total // shape[0]
        if index.numel() % row_size == 0:
            rows = index[::row_size] // row_size
            whole = (rows[:, None] * row_size + torch.arange(row_size)).flatten()
            if torch.equal(whole, index):
                return Block(tuple(shape), Kind.ROWS, rows)
        return Block(tuple(shape), Kind.COORDINATES, index)

    @staticmethod
    def restore(shape: Sequence[int], kind: Kind, index: Tensor) -> Block:
        """A block from its three parts, each checked."""
        for size in shape:
            check_count("A dimension of a parameter", size, least=0)
        match kind:
            case Kind.ALL:
                return Block.all(shape)
            case Kind.SILENT:
                return Block.silent(shape)
            case Kind.ROWS:
                return Block.rows(shape, index)
            case Kind.COORDINATES:
                return Block.coordinates(shape, index)

    @property
    def total(self) -> int:
        """Coordinates of the parameter, active or not."""
        return math.prod(self.shape)

    @property
    def row_count(self) -> int:
        """Rows (entries of dimension 0) of the parameter, active or not; one if it has no dimensions."""
        return self.shape[0] if self.shape else 1

    @property
    def size(self) -> int:
        """Active coordinates."""
        return math.prod(self.compact_shape)

    @property
    def compact_shape(self) -> tuple[int, ...]:
        """Shape of the compact tensor of active values."""
        match self.kind:
            case Kind.ALL:
                return self.shape
            case Kind.ROWS:
                return (self.index.numel(), *self.shape[1:])
            case _:
                return (self.index.numel(),)

    def index_on(self, device: torch.device) -> Tensor:
        """The index on a device, copied there once."""
        if device.type == "cpu":
            return self.index
        by_device = _indices.setdefault(self, {})
        if device not in by_device:
            by_device[device] = self.index.to(device)
        return by_device[device]

    def flat(self) -> Tensor:
        """The active positions in the flattened parameter, sorted."""
        match self.kind:
            case Kind.ALL:
                return torch.arange(self.total)
            case Kind.ROWS:
                row_size = self.total // self.shape[0]
                return (self.index[:, None] * row_size + torch.arange(row_size)).flatten()
            case _:
                return self.index

    def mask(self) -> Tensor:
        """A boolean tensor of the parameter's shape, true where active."""
        mask = torch.zeros(self.total, dtype=torch.bool)
        mask[self.flat()] = True
        return mask.view(self.shape)

    def gather(self, values: Tensor) -> Tensor:
        """The compact tensor of ``values``, a tensor of the parameter's shape."""
        return self.gather_batch(values.unsqueeze(0)).squeeze(0)

    def gather_batch(self, values: Tensor) -> Tensor:
        """The compact tensors of a stack of tensors of the parameter's shape."""
        match self.kind:
            case Kind.ALL:
                return values
            case Kind.ROWS:
                return values.index_select(1, self.index_on(values.device))
            case _:
                return values.flatten(1).index_select(1, self.index_on(values.device))

    def scatter_(self, target: Tensor, compact: Tensor) -> None:
        """Write the compact tensor into the active coordinates of ``target``; the others keep their value."""
        match self.kind:
            case Kind.ALL:
                if target.data_ptr() != compact.data_ptr():
                    target.copy_(compact)
            case Kind.ROWS:
                target.index_copy_(0, self.index_on(target.device), compact)
            case Kind.COORDINATES:
                storage, index = _memory_order(target, self.index_on(target.device))
                storage.index_copy_(0, index, compact)

    def cuts(self, rows: Sequence[int]) -> list[int]:
        """Where in the compact tensor each part begins, and how long it is, if the parameter is cut at these rows."""
        match self.kind:
            case Kind.ALL:
                return list(rows)
            case Kind.ROWS:
                wanted = torch.tensor(rows)
            case _:
                wanted = torch.tensor(rows) * (self.total // self.shape[0])
        return torch.searchsorted(self.index, wanted).tolist()

    def part(self, rows: Sequence[int], place: int) -> Block:
        """The block of one part of the parameter, if it is cut at these rows."""
        first, last = rows[place], rows[place + 1]
        shape = (last - first, *self.shape[1:])
        start, stop = self.cuts(rows)[place : place + 2]
        match self.kind:
            case Kind.ALL if self.weights is not None:
                values = self.weights.values
                return Block.weighted(
                    shape, values[first:last] if self.weights.axis == 0 else values, self.weights.axis
                )
            case Kind.ALL:
                return Block.all(shape)
            case Kind.ROWS:
                return Block.rows(shape, self.index[start:stop] - first)
            case Kind.SILENT:
                return Block.silent(shape)
            case _:
                row_size = self.total // self.shape[0]
                return Block.coordinates(shape, self.index[start:stop] - first * row_size)

    def scaled(self, compact: Tensor) -> Tensor:
        """The compact tensor times the weights; itself where there are none."""
        if self.weights is None:
            return compact
        return compact * self.weights.spread(len(self.shape)).to(compact.device, compact.dtype)

    def between(self, start: Tensor, now: Tensor) -> Tensor:
        """start + weights · (now − start) for compact tensors; exactly ``now`` where there are no weights."""
        return now if self.weights is None else start + self.scaled(now - start)

    def union(self, other: Block) -> Block:
        """The coordinates active in either, each with its full weight if one of the two gives it that."""
        if Kind.ALL in (self.kind, other.kind):
            whole = [b for b in (self, other) if b.kind is Kind.ALL]
            if len(whole) == 1 and whole[0].weights is not None and Kind.SILENT in (self.kind, other.kind):
                return whole[0]
            return Block.all(self.shape)
        if other.kind is Kind.SILENT:
            return self
        if self.kind is Kind.SILENT:
            return other
        return Block.coordinates(self.shape, torch.unique(torch.cat([self.flat(), other.flat()])))


_indices: weakref.WeakKeyDictionary[Block, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def _memory_order(target: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """A one-dimensional view of a dense tensor's memory, and ``flat`` as positions in it."""
    if target.is_contiguous():
        return target.view(-1), flat
    order = sorted(range(target.dim()), key=target.stride, reverse=True)
    storage = target.permute(order)
    if not storage.is_contiguous():
        raise ArgumentError("A parameter must be dense in memory (contiguous or channels-last), not a view.")
    position = torch.zeros_like(flat)
    rest = flat
    for dim in range(target.dim() - 1, -1, -1):
        position += (rest % target.shape[dim]) * target.stride(dim)
        rest = rest // target.shape[dim]
    return storage.view(-1), position


def _checked_index(index: Tensor, limit: int, what: str) -> Tensor:
    index = index.detach().to("cpu", torch.int64).flatten()
    if index.numel() and not bool((index[1:] > index[:-1]).all()):
        sorted_index = index.sort().values
        if bool((sorted_index[1:] == sorted_index[:-1]).any()):
            raise ArgumentError(f"A {what} is named twice in a support; name each once.")
        index = sorted_index
    if index.numel() and (int(index[0]) < 0 or int(index[-1]) >= limit):
        raise ArgumentError(
            f"A {what} of a support lies outside 0..{limit - 1}; it belongs to another model."
        )
    return index.contiguous()
