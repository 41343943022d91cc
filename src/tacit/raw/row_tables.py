"""Embedding tables too large to walk over: read row by row, summed over the rows that a batch touches.

A sum over such a table is held as the rows that occur and what they sum to. Which rows these are is as private as the
examples. Looks at the model use a small table in place of the large one: they ask which example owns which gradient,
and that does not depend on what the table holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.errors import ModelError
from tacit.raw.exact import add_gathered

TILE = 1 << 18
"""Elements that are widened to double precision at once: few enough to stay in memory that is in use."""

STAND_IN = 1009
"""Rows of the small table: a prime, so that ids which differ by a round number stay apart."""


class RowTable(Protocol):
    """A table that is read row by row. ``counted``: the examples that look a row up are counted too."""

    counted: bool

    def read(self, ids: Tensor) -> Tensor:
        """The rows ``ids``, in their shape with the width of the table behind it."""


@dataclass(frozen=True)
class Terms:
    """Terms of a sum over sorted rows: ``weights[j]`` times ``vectors[sources[j]]`` belongs to ``rows[j]``."""

    rows: Tensor
    vectors: Tensor
    sources: Tensor
    weights: Tensor


class RowSum:
    """The sums of a table of ``shape``, zero but in the rows ``index``, which are sorted and differ.

    Sums are formed when they are asked for, some rows at a time and in double precision: together they may take more
    memory than everything else.
    """

    def __init__(
        self, shape: Sequence[int], terms: Sequence[Terms], device: torch.device | None = None
    ) -> None:
        self.shape = tuple(shape)
        self._terms = terms
        rows = [part.rows for part in terms] or [torch.zeros(0, dtype=torch.int64, device=device)]
        self._places: Tensor | None = None
        if len(rows) == 1:
            self.index, self._places = torch.unique_consecutive(rows[0], return_inverse=True)
        else:
            self.index = torch.unique(torch.cat(rows))

    def numel(self) -> int:
        """How many numbers the table has, touched or not: all of them are released."""
        return torch.Size(self.shape).numel()

    def plus(self, other: RowSum) -> RowSum:
        """The sum of both."""
        return RowSum(self.shape, [*self._terms, *other._terms], self.index.device)

    def added_to(self, table: Tensor) -> Tensor:
        """A table in double precision with the sums added to it, in place."""
        for rows, sums in self.tiles():
            table.index_add_(0, rows, sums)
        return table

    def whole(self) -> Tensor:
        """The sums as a table."""
        return self.added_to(torch.zeros(self.shape, dtype=torch.float64, device=self.index.device))

    def tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All sums, some rows at a time: rows, and one vector for each."""
        return self.on(self.index)

    def on(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The sums of these rows, which are sorted and differ; zero for a row that does not occur."""
        step = max(1, TILE // max(1, self.numel() // max(1, self.shape[0])))
        for start in range(0, len(rows), step):
            index = rows[start : start + step]
            total = torch.zeros(len(index), *self.shape[1:], dtype=torch.float64, device=index.device)
            for part in self._terms:
                ends = torch.searchsorted(part.rows, torch.stack([index[0], index[-1] + 1])).tolist()
                # One row may have very many terms, so they come some at a time too.
                for first in range(ends[0], ends[1], step):
                    own = slice(first, min(ends[1], first + step))
                    if rows is self.index and self._places is not None:
                        place = self._places[own] - start
                    else:
                        place = torch.searchsorted(index, part.rows[own])
                    weights, sources = part.weights[own], part.sources[own]
                    if rows is not self.index:
                        asked = index[place] == part.rows[own]
                        place, weights, sources = place[asked], weights[asked], sources[asked]
                    # Sums over one piece of a batch are added up: the order that the bound on rounding is proved for.
                    add_gathered(total, part.vectors, sources, place, weights)
            yield index, total


def check_ids(name: str, ids: Tensor, rows: int) -> None:
    """Refuse ``ids`` of rows that the table does not have."""
    if not ids.numel():
        return
    least, most = ids.aminmax()
    if not 0 <= int(least) <= int(most) < rows:
        raise ModelError(
            f"An example asks for a row that {name!r} does not have: its rows are 0 to {rows - 1}; check the ids, or "
            "give the table more rows."
        )


def embedding_tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained tables of ``nn.Embedding`` and ``nn.EmbeddingBag`` layers, by the first name of each."""
    owned = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and type(module).forward in _FORWARDS
    }
    return {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) in owned}


_FORWARDS = (nn.Embedding.forward, nn.EmbeddingBag.forward)
_LOOKUPS = (F.embedding, torch.embedding, F.embedding_bag, torch.embedding_bag)
_ABOUT = (
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.stride,
    Tensor.is_floating_point,
    Tensor.__len__,
    Tensor.requires_grad_,
)


class StandIns:
    """Small tables in place of large ones while a model is looked at."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._tables = {name: model.get_parameter(name) for name in names}
        self._reading = False
        self._depth = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within this context the tables have about ``STAND_IN`` rows; lookups take ids modulo that number."""
        if self._depth or not self._tables:
            yield
            return
        held = {name: table.data for name, table in self._tables.items()}
        draw = torch.Generator().manual_seed(0)
        self._depth += 1
        try:
            for table in self._tables.values():
                rows = STAND_IN - (
                    len(table) == STAND_IN
                )  # another number than the table has, to be told from it
                small = torch.randn(rows, *table.shape[1:], generator=draw) * 0.1
                table.data = small.to(table.device, table.dtype)
            with _Lookups(self):
                yield
        finally:
            self._depth -= 1
            for name, table in self._tables.items():
                table.data = held[name]

    @contextmanager
    def read(self) -> Iterator[None]:
        """A pass over examples, in which only lookups may read a table."""
        before, self._reading = self._reading, True
        try:
            yield
        finally:
            self._reading = before

    def among(self, arguments: Sequence[Any]) -> str | None:
        """The name of a table among the arguments of a function."""
        for value in arguments:
            for name, table in self._tables.items():
                if value is table:
                    return name
        return None

    def refuse_other_use(self, name: str) -> None:
        """Refuse to read a table by anything but a lookup of rows."""
        if self._reading:
            raise misused(name)


def misused(name: str) -> ModelError:
    """A table whose rows are read otherwise than one by one."""
    return ModelError(
        f"Lazy noise is for tables that are only looked up, row by row, but {name!r} is used in another way as well (a "
        "tied output layer, a norm of the table); untie it, or train without lazy noise."
    )


class _Lookups(TorchFunctionMode):
    def __init__(self, tables: StandIns) -> None:
        super().__init__()
        self._tables = tables

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = self._tables.among([*args, *given.values()])
        if name is None:
            return func(*args, **given)
        if func in (F.embedding, F.embedding_bag):
            table = given["weight"] if "weight" in given else args[1]
            ids = given.pop("input") if "input" in given else args[0]
            given.pop("weight", None)
            if given.get("padding_idx") is not None:
                given["padding_idx"] %= len(table)
            elif func is F.embedding and len(args) > 2 and args[2] is not None:
                args = (*args[:2], args[2] % len(table), *args[3:])
            return func(ids % len(table), table, *args[2:], **given)
        about = func in _ABOUT or getattr(func, "__name__", "") == "__get__"
        if not about and func not in _LOOKUPS:
            self._tables.refuse_other_use(name)
        return func(*args, **given)
