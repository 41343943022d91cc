"""How many examples to work on at once: few enough for memory, many enough to be worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tacit import batches
from tacit.errors import ModelError
from tacit.warning import warn

Result = TypeVar("Result")

_WORDS = ("allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory does not suffice, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


@contextmanager
def largest_output() -> Iterator[list[int]]:
    """A list whose one number will be the bytes of the largest tensor that a module has answered meanwhile."""
    largest = [0]

    def note(module: nn.Module, given: Any, answer: Any) -> None:
        if isinstance(answer, Tensor):
            largest[0] = max(largest[0], answer.nbytes)

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        yield largest
    finally:
        handle.remove()


class Pieces:
    """Works on chunks in pieces that suit the memory, and remembers how large those may be.

    ``most(chunk)`` says how many examples suit it, None for any number. Where memory runs out all the same, a piece is
    worked on in halves. ``views`` consecutive rows are one example and are never parted, nor are the examples of one
    unit, where ``sizes`` says how many examples the units of a chunk have.
    """

    def __init__(self, views: int, most: Callable[[Any], int | None]) -> None:
        self._views = views
        self._suits = most
        self._fits: int | None = None

    def __call__(
        self, chunk: Any, work: Callable[[Any, np.ndarray | None], Result], sizes: np.ndarray | None = None
    ) -> Iterator[Result]:
        """The results of ``work`` on pieces that make up the chunk, each with the sizes of its units.

        Of a piece for which memory runs out nothing is kept: smaller ones are worked on instead.
        """
        rows, start, units = batches.rows(chunk), 0, 0
        while start < rows:
            # Of which memory runs out if finding the size of a piece is too much: the least that there is.
            own = None if sizes is None else sizes[units : units + 1]
            stop = start + self._views * (1 if own is None else int(own[0]))
            try:
                size = self._size(chunk, (rows - start) // self._views)
                if sizes is not None:
                    own = sizes[units : units + _whole(sizes[units:], size)]
                    size = int(own.sum())
                stop = start + size * self._views
                result = work(chunk if stop - start == rows else batches.part(chunk, start, stop), own)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                # The error holds on to everything that was being computed; it ends with this block.
                self._shrink((stop - start) // self._views, single=own is not None and len(own) == 1)
                continue
            start, units = stop, units + (0 if own is None else len(own))
            yield result

    def _size(self, chunk: Any, left: int) -> int:
        """How many of the examples that are left to take next, so that all pieces are about equal."""
        limits = [limit for limit in (self._fits, self._suits(chunk)) if limit is not None]
        return math.ceil(left / math.ceil(left / min(limits))) if limits else left

    def _shrink(self, examples: int, *, single: bool) -> None:
        """Work on half as many from now on. How many there were is a secret: it may be the size of the drawn batch."""
        if single and examples > 1:
            raise ModelError(
                "Memory does not suffice for the gradient of a single unit, whose examples are worked on together; "
                "lower rows_per_unit."
            ) from None
        if examples < 2:
            raise ModelError(
                "Memory does not suffice for the gradient of a single example; use a smaller model, shorter or "
                "smaller examples, or a machine with more memory."
            ) from None
        self._fits = examples // 2
        warn(
            "Memory ran out, so fewer examples are worked on at once from here on, which changes no result. Give a "
            "smaller chunk_size to avoid the failed attempts."
        )


def _whole(sizes: np.ndarray, most: int) -> int:
    """How many units to take so that their examples are at most ``most``; never less than one unit."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), most, side="right")))
