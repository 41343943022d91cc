"""What several processes that train one model do together; for one process each of it is trivial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

Value = TypeVar("Value")


class Ranks(Protocol):
    """The processes that train one model, seen from one of them.

    Every method is called by all ranks, in the same order. If one of them fails, or is gone, the method raises
    on all.
    """

    rank: int
    """This process, from 0."""

    size: int
    """How many there are."""

    def new_key(self) -> bytes | None:
        """32 fresh random bytes that all ranks have, and nobody else; None where there is one rank only."""

    def together(self, action: Callable[[], Value]) -> Value:
        """Every rank acts; no rank continues before all have succeeded."""

    def lead(self, action: Callable[[], Value]) -> Value:
        """Only the first rank acts, and all have its result, which must be plain JSON."""

    def lead_tensors(
        self, action: Callable[[], tuple[dict[str, Tensor], Any]]
    ) -> tuple[dict[str, Tensor], Any]:
        """Only the first rank acts, and all have the tensors and the plain JSON that it returns."""

    def check_same(self, what: str, digest: Callable[[], str]) -> None:
        """Refuse to continue unless ``digest`` gives the same text on every rank."""

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is raised on some rank."""

    def add_up(self, values: Mapping[str, Tensor]) -> None:
        """On the first rank, values ← their sum over all ranks; on others they are of no use afterwards."""

    def spread(self, values: Mapping[str, Tensor]) -> None:
        """On every rank, values ← those of the first, to the last bit."""

    def whole(
        self, own: Mapping[str, Tensor], rows: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors, one after the other, from the rows that each rank has of them.

        ``rows`` says where the rows of each rank begin, and how many there are; no rank has more than one before it.
        """

    def add_up_parts(
        self, values: Mapping[str, Tensor], cuts: Mapping[str, Sequence[int]]
    ) -> dict[str, Tensor]:
        """The sums over all ranks, in double precision, each rank its part: ``cuts`` say where each part begins."""

    def told(self, said: Any) -> list[Any]:
        """What every rank says, in plain JSON, in the order of ranks."""


class Alone:
    """One process: the first rank, and the only one."""

    rank = 0
    size = 1

    def new_key(self) -> bytes | None:
        """None: there is nobody to share it with."""
        return None

    def together(self, action: Callable[[], Value]) -> Value:
        """The action's result."""
        return action()

    def lead(self, action: Callable[[], Value]) -> Value:
        """The action's result."""
        return action()

    def lead_tensors(
        self, action: Callable[[], tuple[dict[str, Tensor], Any]]
    ) -> tuple[dict[str, Tensor], Any]:
        """The action's result."""
        return action()

    def check_same(self, what: str, digest: Callable[[], str]) -> None:
        """Nothing to compare with."""

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """The flags."""
        return flags

    def add_up(self, values: Mapping[str, Tensor]) -> None:
        """Already the sum."""

    def spread(self, values: Mapping[str, Tensor]) -> None:
        """Already there."""

    def whole(
        self, own: Mapping[str, Tensor], rows: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Copies."""
        return ((name, tensor.detach().clone()) for name, tensor in own.items())

    def add_up_parts(
        self, values: Mapping[str, Tensor], cuts: Mapping[str, Sequence[int]]
    ) -> dict[str, Tensor]:
        """Already the sums."""
        return dict(values)

    def told(self, said: Any) -> list[Any]:
        """What this one says."""
        return [said]


ALONE = Alone()


def is_shard(tensor: Tensor) -> bool:
    """Whether processes hold parts of a tensor: a DTensor, without importing what defines it, which takes time."""
    return hasattr(tensor, "placements")
