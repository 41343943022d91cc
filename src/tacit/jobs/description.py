"""A run described as data: five sections of plain values, from TOML, JSON or the command line."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tacit.data.task import Kind
from tacit.errors import ArgumentError, FileError
from tacit.files import decode_toml
from tacit.models.config import ModelConfig


@dataclass(frozen=True)
class DataConfig:
    """What to train on.

    ``source`` is a built-in data set, a CSV or Parquet file, a folder of images or an import path
    ``module:object``. ``prevalence`` is the publicly known share of the positive class: predictions above it
    count as positive (0.5 unless given). ``tokenizer`` names a checkpoint whose tokenizer makes ids of the texts
    (of the column ``text``, where the source is a table), at most ``length`` each. ``examples`` trains on the first
    ones only.
    ``features`` names a fixed transform of images (``tacit.data.features``).
    ``validation`` measures on this share of the training examples instead of the held-out ones, and trains
    on the rest: for choosing settings without looking at the held-out data.
    """

    source: str = ""
    target: str | None = None
    schema: str | None = None
    kind: Kind | None = None
    positive: str | None = None
    drop: tuple[str, ...] = ()
    split_by: str | None = None
    separator: str | None = None
    held_out: float = 0.2
    prevalence: float | None = None
    image_size: int = 32
    grey: bool = False
    data_dir: str | None = None
    text: str | None = None
    tokenizer: str | None = None
    length: int | None = None
    examples: int | None = None
    features: str | None = None
    validation: float | None = None


@dataclass(frozen=True)
class MethodConfig:
    """The training method and its options; those that are not given are the method's own defaults."""

    name: str = "tp-topk"
    active_ratio: float | Literal["auto", "soft"] | None = None
    warmup: tuple[float, ...] | None = None
    score: str | None = None
    pooling: str | None = None
    per_layer: bool | None = None
    reset: bool | None = None
    explore: float | None = None
    always_active: tuple[str, ...] | None = None
    rows: int | None = None
    active: tuple[str, ...] | None = None
    selection_epochs: float | None = None
    selection_budget: float | None = None
    head: tuple[str, ...] | None = None
    head_epochs: float | None = None
    clip_order: str | None = None

    @property
    def options(self) -> dict[str, object]:
        """The options that were given, for ``make_plan``."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "name"}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class PrivacyConfig:
    """The promise. Without ``delta`` it is 1e-5, or a tenth of 1 / examples where that is smaller."""

    epsilon: float = 3.0
    delta: float | None = None
    accountant: str = "pld"


@dataclass(frozen=True)
class TrainingConfig:
    """How to train. ``seed`` makes a run reproducible and, for that reason, not for release."""

    batch_size: int | None = None
    epochs: float | None = None
    clip_norm: float | tuple[float, ...] = 1.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    average: float | None = None
    chunk_size: int | None = None
    isolation: Literal["probed", "construction"] = "probed"
    seed: int | None = None


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what a run does."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


def read_experiment(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of a TOML file, as far as they are given, with every key and value checked."""
    try:
        raw = decode_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"The configuration {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"The configuration {path} is not valid TOML: {error}.") from error
    try:
        experiment_of(raw)
    except ArgumentError as error:
        raise FileError(f"{path}: {error}") from error
    return raw


def experiment_of(record: Mapping[str, Any]) -> Experiment:
    """The experiment that a record of sections describes; unknown sections, keys and values are refused."""
    sections = {field.name: field for field in dataclasses.fields(Experiment)}
    kinds = typing.get_type_hints(Experiment)
    for name in record:
        if name not in sections:
            raise ArgumentError(f"There is no section [{name}]{_hint(name, sections)}")
    return Experiment(**{name: _section(kinds[name], name, values) for name, values in record.items()})


def merged(record: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``record`` with the values of ``changes`` that are not ``None`` in place of its own."""
    result = {name: dict(values) for name, values in record.items()}
    for name, values in changes.items():
        given = {key: value for key, value in values.items() if value is not None}
        result[name] = {**result.get(name, {}), **given}
    return result


def to_record(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The experiment as plain values for JSON; what is not set is null, an infinite number the word inf."""
    return {
        section: {key: _json_value(value) for key, value in values.items()}
        for section, values in dataclasses.asdict(experiment).items()
    }


def from_record(record: Any, where: Path) -> Experiment:
    """Read what ``to_record`` gave."""
    try:
        return experiment_of(
            {
                section: {
                    key: math.inf if value == "inf" else value
                    for key, value in values.items()
                    if value is not None
                }
                for section, values in record.items()
            }
        )
    except (ArgumentError, AttributeError) as error:
        raise FileError(f"{where} does not describe an experiment of this version: {error}") from error


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML, with every default; what is not set stands as a comment."""
    lines = []
    for section, values in dataclasses.asdict(experiment).items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            lines.append(f"# {key} is not set" if value is None else f"{key} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _section(cls: type[Any], section: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise ArgumentError(f"[{section}] must be a table of keys and values.")
    kinds = typing.get_type_hints(cls)
    for key in values:
        if key not in kinds:
            raise ArgumentError(f"[{section}] has no key {key!r}{_hint(key, kinds)}")
    return cls(**{key: _value(section, key, value, kinds[key]) for key, value in values.items()})


def _value(section: str, key: str, value: Any, kind: Any) -> Any:
    """``value`` as one of the types that ``kind`` allows."""
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    allowed = tuple(a for part in allowed for a in (_union(part)))
    for one in allowed:
        found = _as(value, one)
        if found is not None:
            return found
    words = " or ".join(_word(one) for one in allowed if one is not type(None))
    raise ArgumentError(f"{key} in [{section}] must be {words}, got {value!r}.")


def _union(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _as(value: Any, kind: Any) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if typing.get_origin(kind) is typing.Literal:
        return value if value in typing.get_args(kind) else None
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            return None
        items = [_as(item, typing.get_args(kind)[0]) for item in value]
        return None if any(item is None for item in items) else tuple(items)
    if kind is float:
        return float(value) if isinstance(value, int | float) else None
    return value if kind in (int, str) and isinstance(value, kind) else None


def _word(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"a list ({_word(typing.get_args(kind)[0])} each)"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]


def _hint(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}."


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
