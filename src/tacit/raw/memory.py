"""How many examples to work on at once: few enough for memory, many enough to be worth it."""

from __future__ import annotations

import math
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


class Pieces:
    """Works on chunks in pieces that suit the memory, and remembers how large those may be.

    ``most(chunk)`` says how many examples suit it, None for any number. Where memory runs out all the same, a piece is
    worked on in halves. ``views`` consecutive rows are one example and are never parted.
    """

    def __init__(self, views: int, most: Callable[[Any], int | None]) -> None:
        self._views = views
        self._suits = most
        self._fits: int | None = None

    def __call__(self, chunk: Any, work: Callable[[Any], Result]) -> Iterator[Result]:
        """The results of ``work`` on pieces that make up the chunk.

        Of a piece for which memory runs out nothing is kept: smaller ones are worked on instead.
        """
        rows, start = batches.rows(chunk), 0
        while start < rows:
            stop = start + self._views  # of which memory runs out if finding the size of a piece is too much
            try:
                stop = start + self._size(chunk, (rows - start) // self._views) * self._views
                result = work(chunk if stop - start == rows else batches.part(chunk, start, stop))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                # The error holds on to everything that was being computed; it ends with this block.
                self._shrink((stop - start) // self._views)
                continue
            start = stop
            yield result

    def _size(self, chunk: Any, left: int) -> int:
        """How many of the examples that are left to take next, so that all pieces are about equal."""
        limits = [limit for limit in (self._fits, self._suits(chunk)) if limit is not None]
        return math.ceil(left / math.ceil(left / min(limits))) if limits else left

    def _shrink(self, examples: int) -> None:
        """Work on half as many from now on. How many there were is a secret: it may be the size of the drawn batch."""
        if examples < 2:
            raise ModelError(
                "Memory does not suffice for the gradient of a single example; use a smaller model, shorter or "
                "smaller examples, or a machine with more memory."
            ) from None
        self._fits = examples // 2
        warnings.warn(
            "Memory ran out, so fewer examples are worked on at once from here on, which changes no result. Give a "
            "smaller chunk_size to avoid the failed attempts.",
            stacklevel=2,
        )
