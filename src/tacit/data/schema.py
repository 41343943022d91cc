"""A schema: the public facts by which rows become numbers.

Nothing in a schema may come from the private rows unless it is marked ``public=False``; such a column is
named among what epsilon does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from tacit.data.task import KINDS, Kind
from tacit.data.values import normal_value
from tacit.errors import ArgumentError, check_count

Scale = Literal["linear", "log"]
SCALES: tuple[Scale, ...] = ("linear", "log")
DEFAULT_BUCKETS = 32


@dataclass(frozen=True)
class Number:
    """A number between ``low`` and ``high``; what lies outside is moved to the nearer end.

    Encoded as one feature in [-1, 1] that is 0 at ``typical`` (the middle of the range unless given),
    linearly or (``log``) by the logarithm of 1 + the distance from ``low``. ``missing_values`` are codes
    that mean "no answer". A missing value counts as typical; with ``missing`` a feature of its own marks
    it besides. ``decimal`` is the sign before decimal places.
    """

    low: float
    high: float
    scale: Scale = "linear"
    typical: float | None = None
    missing_values: tuple[str, ...] = ()
    missing: bool = True
    public: bool = True
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ArgumentError(f"decimal must be a point or a comma, got {self.decimal!r}.")
        if not 0 < self.high - self.low < math.inf:
            raise ArgumentError(
                f"low must be below high, at a finite distance; got low={self.low} and high={self.high}."
            )
        if self.scale not in SCALES:
            raise ArgumentError(f"scale must be one of {', '.join(SCALES)}; got {self.scale!r}.")
        if self.typical is not None and not self.low <= self.typical <= self.high:
            raise ArgumentError(
                f"typical must lie between low and high; got typical={self.typical} "
                f"for {self.low} .. {self.high}."
            )


@dataclass(frozen=True)
class Category:
    """One of ``values``; any other value counts as missing.

    Encoded as one feature per value (one-hot); as a single 0/1 feature where there are two values; as a
    single feature in [-1, 1] by rank where the values are ``ordered``.
    """

    values: tuple[str, ...]
    ordered: bool = False
    missing: bool = True
    public: bool = True

    def __post_init__(self) -> None:
        normal = [normal_value(value) for value in self.values]
        if len(normal) < 2 or len(set(normal)) < len(normal):
            raise ArgumentError(f"values must hold at least two different values, got {list(self.values)}.")


@dataclass(frozen=True)
class Text:
    """Free text, hashed word by word into ``buckets`` signed counts of Euclidean norm 1; no vocabulary is
    kept.
    """

    buckets: int = DEFAULT_BUCKETS
    public: bool = True

    def __post_init__(self) -> None:
        check_count("buckets", self.buckets)


@dataclass(frozen=True)
class Date:
    """A day (a time of day is ignored) between ``low`` and ``high``, written as ``format`` (of ``strptime``).

    Encoded as the place in the range and as the angle of the day in the year and in the week.
    """

    low: date
    high: date
    format: str = "%Y-%m-%d"
    missing: bool = True
    public: bool = True

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ArgumentError(f"low must be before high; got low={self.low} and high={self.high}.")


@dataclass(frozen=True)
class Skip:
    """A column that is not used."""

    public: bool = True


Column = Number | Category | Text | Date | Skip


@dataclass(frozen=True)
class Target:
    """What is predicted.

    ``classes`` are the values in the file, by label (for ``binary`` the second is the positive one). A
    regression target is scaled from ``low`` .. ``high`` to -1 .. 1.
    """

    name: str
    kind: Kind
    classes: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    public: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}.")
        if self.kind == "regression":
            if self.low is None or self.high is None or not 0 < self.high - self.low < math.inf:
                raise ArgumentError(
                    f"The regression target {self.name!r} needs low and high with low < high, "
                    f"got low={self.low} and high={self.high}."
                )
            return
        normal = {normal_value(value) for value in self.classes}
        if len(normal) < len(self.classes) or len(normal) < 2 or (self.kind == "binary" and len(normal) != 2):
            wanted = "exactly two" if self.kind == "binary" else "at least two"
            raise ArgumentError(
                f"The {self.kind} target {self.name!r} needs {wanted} different classes, "
                f"got {list(self.classes)}."
            )

    @property
    def range(self) -> tuple[float, float]:
        """The public range of a regression target."""
        if self.low is None or self.high is None:
            raise ArgumentError(f"The target {self.name!r} has no range; it is {self.kind}.")
        return self.low, self.high


@dataclass(frozen=True)
class Schema:
    """The target and the columns, by name; columns of the file that are absent here are not declared."""

    target: Target
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.target.name in self.columns:
            raise ArgumentError(f"The target {self.target.name!r} cannot also be a column to predict from.")
