"""A schema: the public facts by which rows become numbers.

``measured`` marks what a run has measured on its training rows, with noise, within its epsilon.

Nothing in a schema may come from the private rows unless it is marked ``public=False``; such a column is
named among what epsilon does not cover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

from tacit.data.task import KINDS, Kind
from tacit.data.values import normal_value
from tacit.errors import ArgumentError, FileError, check_count
from tacit.files import decode_json, decode_toml, toml_value, write_text
from tacit.name_lists import listed

Scale = Literal["linear", "log"]
SCALES: tuple[Scale, ...] = ("linear", "log")
DEFAULT_BUCKETS = 32


@dataclass(frozen=True)
class Number:
    """A number between ``low`` and ``high``; what lies outside is moved to the nearer end.

    Encoded as one feature in [-1, 1] that is 0 at ``typical`` (the middle of the range unless given),
    linearly or (``log``) by the logarithm of 1 + the distance from ``low``. ``missing_values`` are codes
    that mean "no answer". A missing value counts as typical; with ``missing`` a feature of its own marks
    it besides. ``decimal`` is the sign before decimal places. ``cuts`` are increasing values at which the additive
    model may change its answer; unless given, they divide the range on its scale into equal parts.
    """

    low: float
    high: float
    scale: Scale = "linear"
    typical: float | None = None
    missing_values: tuple[str, ...] = ()
    missing: bool = True
    public: bool = True
    decimal: str = "."
    cuts: tuple[float, ...] = ()
    measured: bool = False

    def __post_init__(self) -> None:
        if any(not first < second for first, second in itertools.pairwise(self.cuts)) or not all(
            self.low <= cut <= self.high for cut in self.cuts
        ):
            raise ArgumentError(f"cuts must increase and lie between low and high, got {list(self.cuts)}.")
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
    single feature in [-1, 1] by rank where the values are ``ordered``. With ``others`` all other values share that
    many features: each has one of them, by a fixed hash.
    """

    values: tuple[str, ...]
    ordered: bool = False
    missing: bool = True
    public: bool = True
    others: int = 0
    measured: bool = False

    def __post_init__(self) -> None:
        check_count("others", self.others, least=0)
        normal = [normal_value(value) for value in self.values]
        if (len(normal) < 2 and not self.others) or len(set(normal)) < len(normal):
            raise ArgumentError(f"values must hold at least two different values, got {list(self.values)}.")
        if self.others and self.ordered:
            raise ArgumentError("Values that are ordered leave no room for others.")


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
    measured: bool = False

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

    ``classes`` are the values in the file, by label (for ``binary`` the second is the positive one); ``shares`` says
    how frequent each of them is, where that is known. A regression target is scaled from ``low`` .. ``high`` to
    -1 .. 1; ``typical`` is where an untrained model starts.
    """

    name: str
    kind: Kind
    classes: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    public: bool = True
    shares: tuple[float, ...] = ()
    typical: float | None = None
    measured: bool = False

    def __post_init__(self) -> None:
        if self.shares and (
            len(self.shares) != len(self.classes)
            or min(self.shares) <= 0
            or not math.isclose(sum(self.shares), 1, abs_tol=1e-3)
        ):
            raise ArgumentError(
                f"shares must give each class of the target {self.name!r} a positive share, 1 in all; got "
                f"{list(self.shares)}."
            )
        if self.typical is not None and not (
            self.low is not None and self.high is not None and self.low <= self.typical <= self.high
        ):
            raise ArgumentError(f"typical of the target {self.name!r} must lie between low and high.")
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
    def range_or_classes(self) -> tuple[object, ...]:
        """What labels depend on."""
        return (self.kind, self.classes, self.low, self.high)

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


TYPES: dict[str, type[Column]] = {
    "number": Number,
    "category": Category,
    "text": Text,
    "date": Date,
    "skip": Skip,
}
_NAMES = {kind: name for name, kind in TYPES.items()}
_NUMBERS = ("low", "high", "typical")
_LISTS = ("values", "classes", "missing_values")
_FLAGS = ("public", "missing", "ordered", "measured")
_HEADER = """\
# How rows become numbers. What this file says must be public knowledge: epsilon does not cover it.
# public = false marks what was read off the private rows. Put in its place what is known without looking at
# them (a legal age range, an official code list) and delete the mark.
# measured = true marks what a run has measured on them with noise, and paid for within its epsilon.
"""


def read_schema(path: str | Path) -> Schema:
    """Read a schema file; every key it holds is checked."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no schema file {path}.")
    try:
        text = path.read_text(encoding="utf-8")
        raw = decode_json(text) if path.suffix.lower() == ".json" else decode_toml(text)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is not a readable schema file: {error}.") from error
    if not isinstance(raw, dict):
        raise FileError(f"{path} must hold a table [target] and tables [columns.<name>].")
    return schema_from_dict(raw, str(path))


def schema_from_dict(raw: Mapping[str, Any], where: str) -> Schema:
    """Build a schema from plain values; ``where`` names the source in messages."""
    _only(raw, ("target", "columns"), where)
    target, columns = raw.get("target"), raw.get("columns", {})
    if not isinstance(target, dict) or not isinstance(columns, dict):
        raise FileError(f"{where} must hold a table [target] and tables [columns.<name>].")
    try:
        built = {name: _column(name, values, where) for name, values in columns.items()}
        return Schema(_build(Target, target, f"{where}, [target]"), built)
    except ArgumentError as error:
        raise FileError(f"{where}: {error}") from error


def _column(name: str, raw: object, where: str) -> Column:
    place = f"{where}, [columns.{name}]"
    if not isinstance(raw, dict):
        raise FileError(f"{place} must be a table with a type.")
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise FileError(f"{place} needs a type, one of {listed(list(TYPES))}; got {kind!r}.")
    column: Column = _build(TYPES[kind], {key: value for key, value in raw.items() if key != "type"}, place)
    return column


def _build(cls: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    known = [field.name for field in fields(cls)]
    _only(raw, known, where)
    values = {key: _value(cls, key, value, where) for key, value in raw.items()}
    try:
        return cls(**values)
    except ArgumentError as error:
        raise FileError(f"{where}: {error}") from error
    except TypeError as error:
        absent = [field for field in _required(cls) if field not in raw]
        raise FileError(f"{where} lacks {listed(absent)}.") from error


def _required(cls: type[Any]) -> list[str]:
    return [field.name for field in fields(cls) if field.default is MISSING]


def _only(raw: Mapping[str, Any], known: tuple[str, ...] | list[str], where: str) -> None:
    unknown = [key for key in raw if key not in known]
    if unknown:
        raise FileError(f"{where} has unknown keys {listed(unknown)}; known are {listed(known)}.")


def _value(cls: type[Any], key: str, value: Any, where: str) -> Any:
    if key in _FLAGS and isinstance(value, bool):
        return value
    if cls is Date and key in ("low", "high"):
        return _day(key, value, where)
    if key in _NUMBERS and _is_number(value):
        return value
    if key in ("cuts", "shares") and isinstance(value, list) and all(map(_is_number, value)):
        return tuple(value)
    if key in ("buckets", "others") and isinstance(value, int) and not isinstance(value, bool):
        return value
    if key in _LISTS and isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return tuple(str(v).lower() if isinstance(v, bool) else str(v) for v in value)
    if key in ("name", "kind", "scale", "format", "decimal") and isinstance(value, str):
        return value
    raise FileError(f"{where}: {key} cannot be {value!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _day(key: str, value: Any, where: str) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise FileError(f"{where}: {key} must be a day such as 2020-12-31, got {value!r}.") from error


def write_schema(schema: Schema, path: str | Path) -> None:
    """Write ``schema`` as TOML; the file appears whole or not at all."""
    write_text(Path(path), schema_text(schema))


def schema_text(schema: Schema) -> str:
    """What ``write_schema`` writes."""
    lines = [_HEADER, "[target]", *_lines(schema.target)]
    for name, column in schema.columns.items():
        lines += [
            "",
            f"[columns.{toml_value(name)}]",
            f"type = {toml_value(_NAMES[type(column)])}",
            *_lines(column),
        ]
    return "\n".join(lines) + "\n"


def _lines(part: Column | Target) -> list[str]:
    """Write the fields that differ from their default."""
    return [
        f"{field.name} = {toml_value(_plain(value))}"
        for field in fields(part)
        if (value := getattr(part, field.name)) != field.default
    ]


def _plain(value: object) -> object:
    """A number without digits behind the point as people write it."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return int(value) if isinstance(value, float) and value == int(value) and abs(value) < 1e15 else value
