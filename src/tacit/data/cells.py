"""A column of texts in which every different text is kept once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray


class Cells(Sequence[str]):
    """The cells of one column: ``values`` are the different texts, ``codes`` says which of them each row has.

    It reads like a list of texts. What is done once per different text (parsing, looking up) costs little for a column
    of a few categories.
    """

    def __init__(self, values: list[str], codes: NDArray[np.int64]) -> None:
        self.values, self.codes = values, codes

    @classmethod
    def of(cls, texts: Iterable[str]) -> Cells:
        """The cells that a list of texts holds."""
        if isinstance(texts, Cells):
            return texts
        places: dict[str, int] = {}
        codes = [places.setdefault(text, len(places)) for text in texts]
        return cls(list(places), np.array(codes, dtype=np.int64))

    def mapped(self, change: Callable[[str], str]) -> Cells:
        """The cells with every text changed."""
        changed = Cells.of(map(change, self.values))
        return Cells(changed.values, changed.codes[self.codes])

    @cached_property
    def floats(self) -> NDArray[np.float64] | None:
        """The values as plain numbers, an empty one as not a number; ``None`` if one is no plain number."""
        texts = [value or "nan" for value in self.values]
        # NumPy drops a NUL at the end of a text: what a cell means would depend on the cells beside it.
        if any(sign in " ".join(texts) for sign in "_\0"):
            return None
        try:
            found = np.array(texts, dtype=np.str_).astype(np.float64)
        except ValueError:
            return None
        # Of the texts that Python reads as no number only "nan" is a usual word for a missing value.
        unusual = any(texts[place].lower() != "nan" for place in np.flatnonzero(np.isnan(found)))
        return None if unusual or np.isinf(found).any() else found

    def counts(self) -> NDArray[np.int64]:
        """How many rows have each of the values."""
        return np.bincount(self.codes, minlength=len(self.values))

    def chosen(self, rows: NDArray[np.bool_]) -> Cells:
        """The cells of some rows; every value is one that they hold."""
        kept, codes = np.unique(self.codes[rows], return_inverse=True)
        return Cells([self.values[place] for place in kept.tolist()], codes.astype(np.int64))

    def first(self, place: int) -> int:
        """The first row that has the value number ``place``."""
        return int(np.argmax(self.codes == place))

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> Cells: ...

    def __getitem__(self, row: int | slice) -> str | Cells:
        if isinstance(row, slice):
            return Cells(self.values, self.codes[row])
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return map(self.values.__getitem__, self.codes.tolist())

    def __len__(self) -> int:
        return len(self.codes)

    def __add__(self, other: Iterable[str]) -> Cells:
        return Cells.of([*self, *other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Cells({list(self[:5])}{'...' if len(self) > 5 else ''})"
