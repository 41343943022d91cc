"""Going on when memory runs out: a chunk that is too large is worked on in halves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from tacit import batches
from tacit.errors import ModelError

Result = TypeVar("Result")

_WORDS = ("allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory does not suffice, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


class Halving:
    """Works on chunks in parts that fit into memory, and remembers how large those may be.

    ``views`` consecutive rows are one example and are never parted.
    """

    def __init__(self, views: int) -> None:
        self._views = views
        self._most: int | None = None

    def __call__(self, chunk: Any, work: Callable[[Any], Result]) -> Iterator[Result]:
        """The results of ``work`` on parts that make up the chunk.

        Of a part for which memory runs out nothing is kept: its halves are worked on instead.
        """
        waiting = self._parts(chunk, self._most)
        while waiting:
            part = waiting.pop(0)
            try:
                result = work(part)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                # The error holds on to everything that was being computed; it ends with this block.
                self._shrink(batches.rows(part) // self._views, error)
            else:
                yield result
                continue
            waiting = [*self._parts(part, self._most), *waiting]

    def _shrink(self, examples: int, error: BaseException) -> None:
        why = " ".join(str(error).split())[:200].rstrip(". ")
        if examples < 2:
            raise ModelError(
                f"Memory does not suffice for the gradient of a single example: {why}."
            ) from None
        self._most = examples // 2
        warnings.warn(
            f"Memory ran out with {examples} examples at once; going on with {self._most}, which changes no result. "
            f"Give chunk_size={self._most} to start so.",
            stacklevel=2,
        )

    def _parts(self, chunk: Any, most: int | None) -> list[Any]:
        rows = batches.rows(chunk)
        size = rows if most is None else most * self._views
        if rows <= size:
            return [chunk]
        return [batches.part(chunk, start, min(start + size, rows)) for start in range(0, rows, size)]
