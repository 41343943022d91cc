"""What the rest of Tacit needs to know about a data set: two datasets and the public facts beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from tacit.errors import ArgumentError, check_share

if TYPE_CHECKING:
    from tacit.data.bags import Bags
    from tacit.data.schema import Schema

Kind = Literal["binary", "multiclass", "regression", "generate"]
KINDS: tuple[Kind, ...] = ("binary", "multiclass", "regression")
Pairs = Dataset[Any]
"""An item is (x, y)."""

HELD_OUT_NOT_COVERED = (
    "The figures measured on the held-out rows: those rows are never trained on, but what is printed about "
    "them (accuracy, AUC, counts) is exact."
)
COUNT_NOT_COVERED = "The number of training rows: it is used and shown as a public number."


class OfRows(str):
    """A sentence for the screen that was read off private rows: also whether it is said at all tells about them."""


def without_rows(sentences: Iterable[str]) -> tuple[str, ...]:
    """Sentences as they may be stored and published: those that do not come from private rows."""
    return tuple(one for one in sentences if not isinstance(one, OfRows))


@dataclass(frozen=True)
class NumberFeature:
    """A feature that holds a number of a table, on its encoded scale.

    ``at`` is its position, ``missing`` that of the mark beside it, if there is one. ``cuts`` divide its range.
    """

    at: int
    missing: int | None
    cuts: tuple[float, ...]


@dataclass(frozen=True)
class ImageInput:
    """How images become tensors: (channels, height, width), and what the values 0 and 255 become."""

    shape: tuple[int, int, int]
    low: float
    high: float


@dataclass(frozen=True)
class Task:
    """A supervised task, ready to train on.

    An item of ``train`` and of ``held_out`` (``None`` if no rows are held out) is ``(x, y)``. ``y`` is a float
    tensor of shape (1,) for ``binary`` (0 or 1; 1 means ``classes[1]``) and ``regression``, and an int64 scalar for
    ``multiclass``. For ``generate`` an item is a mapping with ``input_ids`` and ``attention_mask``.
    Whether a row is in ``train`` depends on that row alone (or on a split that was published with the data),
    and so does its ``x``, given the public facts; hence adding or removing one row of the source changes one
    item of ``train`` at most. Everything for which this is not true is named in ``not_covered``.

    name:           for reports.
    input_shape:    shape of ``x``.
    classes:        names by label; empty for regression.
    features:       names by position where ``x`` is a vector of named features, else empty.
    numbers:        which features hold numbers, and where their ranges are divided.
    columns:        how many columns of a table the features come from, 0 where there is no table.
    vocabulary:     the number of token ids where ``x`` holds int64 token ids (0 is padding), else ``None``.
    bags:           how texts became ids, where they are bags of words: different ids, in no order.
    norm_bound:     a public bound on the Euclidean norm of every ``x``, where there is one.
    value_range:    public bounds on every entry of ``x``, for images.
    image:          how images become tensors, before any fixed features or frozen blocks, where there are images.
    schema:         how rows become numbers, where ``x`` comes from a table.
    not_covered:    sentences: what was taken from private rows without being charged to epsilon.
    public_sources: sentences: where scaling, categories and the split come from.
    warnings:       sentences: what looks wrong with the data; ``OfRows`` where it comes from private rows.
    unit:           the unit of privacy in words, where it is a group of rows; else empty.
    units:          then a number per item of ``train``: equal for the rows of one unit.
    held_out_units: the same for ``held_out``. No unit is in both.
    """

    name: str
    train: Pairs
    held_out: Pairs | None
    kind: Kind
    input_shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    numbers: tuple[NumberFeature, ...] = ()
    columns: int = 0
    vocabulary: int | None = None
    bags: Bags | None = None
    norm_bound: float | None = None
    value_range: tuple[float, float] | None = None
    image: ImageInput | None = None
    schema: Schema | None = None
    not_covered: tuple[str, ...] = ()
    public_sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unit: str = ""
    units: NDArray[np.int64] | None = field(default=None, compare=False)
    held_out_units: NDArray[np.int64] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.units is not None and not self.unit:
            raise ArgumentError("A task with units needs words for what one unit is.")
        if self.units is not None and self.held_out_units is not None:
            both = np.intersect1d(self.units, self.held_out_units)
            if both.size:
                raise ArgumentError(
                    "A unit has rows to train on and held-out rows: what is measured would give it away; keep the rows "
                    "of a unit on one side."
                )
        least, most = {"binary": (2, 2), "multiclass": (2, None)}.get(self.kind, (0, 0))
        if len(self.classes) < least or (most is not None and len(self.classes) > most):
            raise ArgumentError(f"A {self.kind} task cannot have {len(self.classes)} classes.")

    @property
    def outputs(self) -> int:
        """Numbers a model must return per example: one logit, one value, or one logit per class."""
        return len(self.classes) if self.kind == "multiclass" else 1


Share = float | tuple[float, float]
"""A part of the keys: a share of them, or those from one share to another, as in (0.2, 0.4)."""


def held_out_mask(keys: Iterable[str | bytes], part: Share) -> NDArray[np.bool_]:
    """Mark each key as held out with a probability over keys: that of ``part``.

    The mark is a fixed function of the key: no row influences on which side another one falls (a split by
    position or by a shuffled index would move every row behind an added one), and equal keys fall together.
    """
    low, high = part if isinstance(part, tuple) else (0.0, part)
    check_share("held_out", high - low, one_allowed=False)
    digests = b"".join(map(_digest, keys))
    places = np.frombuffer(digests, dtype=">u8")
    marks = places >= np.uint64(int(low * 2**64))
    if high < 1:
        marks &= places < np.uint64(int(high * 2**64))
    return np.asarray(marks, dtype=np.bool_)


def _digest(key: str | bytes) -> bytes:
    text = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8, person=b"tacit-split").digest()
