"""A run described as data: six sections of plain values, from TOML, JSON or the command line."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tacit.errors import ArgumentError, FileError, did_you_mean
from tacit.files import decode_toml, toml_value
from tacit.models.config import ModelConfig
from tacit.option_fields import Option, alternatives, option, options_of
from tacit.plan.method_options import method_options
from tacit.plan.methods import METHODS
from tacit.units import ROWS_PER_UNIT


@dataclass(frozen=True)
class DataConfig:
    """What to train on. Options of tables, images and texts are refused for other data."""

    source: str = option(
        "A data set by name, a CSV, Parquet or Excel file, a folder of Parquet files or images, or module:object.",
        "",
        flag="SOURCE",
    )
    target: str | None = option("Column of a table to predict.", None)
    schema: str | None = option("Schema file with public ranges and categories of a table's columns.", None)
    kind: Literal["binary", "multiclass", "regression"] | None = option(
        "Kind of task, where the data does not show it.", None
    )
    positive: str | None = option("Value of the target that is the positive class.", None)
    drop: tuple[str, ...] = option("Column of a table to leave out.", ())
    split_by: str | None = option("Column whose equal values stay on the same side of the split.", None)
    unit: str | None = option(
        "Column that says whose row it is: all rows with the same value are protected as one unit, and stay on one "
        "side of the split. For image folders a pattern on the path, or a CSV file with the columns file and unit.",
        None,
        shown="every row is a unit",
    )
    rows_per_unit: int = option(
        "Rows of one unit that take part in a step, at most; of more, a random choice in every step.",
        ROWS_PER_UNIT,
    )
    separator: str | None = option("Separator of a CSV file.", None, shown="found from the header")
    encoding: str | None = option("Encoding of a CSV file, such as cp1252.", None, shown="utf-8")
    held_out: float = option("Share of the rows held out for evaluation; 0 trains on all.", 0.2)
    test: str | None = option(
        "File with rows to measure on instead; then all rows of SOURCE are trained on.", None
    )
    fold: str | None = option(
        "Part of the rows to hold out instead, as in 2/5: the second of five equal parts, by a fixed hash.",
        None,
        shown="none",
    )
    statistics: Literal["private", "rows"] | None = option(
        "Where ranges, quantiles and categories come from that no schema declares: private measures them with noise, "
        "within ε; rows takes them from the rows, which ε does not cover.",
        None,
        shown="private for the additive model where ε · rows / √columns is at least 800, else rows",
    )
    prevalence: float | None = option(
        "Publicly known share of positives; predictions above it count as positive.",
        None,
        shown="as measured, else 0.5",
    )
    image_size: int | None = option(
        "Side to which images are resized.", None, shown="32; 64 to fine-tune a network"
    )
    grey: bool = option("Read images in grey.", False, flag="--grey/--colour")
    data_dir: str | None = option("Folder that holds the built-in data sets.", None, shown="TACIT_DATA")
    text: str | None = option(
        "Column of a table that holds the texts; tacit train then reads this column only, as the words in it.",
        None,
    )
    buckets: int | None = option(
        "Numbers that the words of --text are hashed to; the hash is public, so no vocabulary is taken from the texts.",
        None,
        shown="262,144",
    )
    pairs: bool = option(
        "Hash pairs of neighbouring words of --text as well; under noise, words alone are often better.",
        False,
    )
    words: str | None = option(
        "File with a public list of the words, and pairs of words, of --text that count, one per line, in place of the "
        "hash.",
        None,
    )
    task: Literal["classify", "generate"] | None = option(
        "What a text model is fine-tuned for: generate needs a causal language model, and a folder of .txt files or a "
        "table with a column of texts.",
        None,
        shown="classify",
    )
    tokenizer: str | None = option("Checkpoint whose tokenizer turns texts into token ids.", None)
    length: int | None = option(
        "Most tokens of a text that are read; to generate, of a row of a text; with --text in tacit train, most "
        "different words.",
        None,
        shown="48; 128 to generate; 512 words, 1024 with pairs",
    )
    examples: int | None = option(
        "Train on the first so many examples of a built-in data set or of texts only.", None, shown="all"
    )
    features: str | None = option(
        "Fixed image features: scattering, scattering-on-black, scattering-upright, scattering-maps, patches, "
        "patches-full, network, patches-network or network-on-black.",
        None,
    )
    public: str | None = option(
        "Folder of public images like those of SOURCE, with the same classes or others: what to start from is chosen "
        "by training on them.",
        None,
        shown="start from features if the images are grey or a recipe has them, else from mobilenet-v2",
    )
    validation: float | None = option(
        "Evaluate on this share of the training examples instead of the held-out ones, to choose settings without "
        "looking at those.",
        None,
    )

    @property
    def held_out_part(self) -> float | tuple[float, float]:
        """The part of the rows to hold out: a share, or from which share to which for one of several equal parts."""
        if self.fold is None:
            return self.held_out
        if self.test is not None:
            raise ArgumentError("fold and test both say what to measure on; leave one out.")
        number, _, count = self.fold.partition("/")
        if not (
            number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) and int(count) > 1
        ):
            raise ArgumentError(f"fold must be a part and the number of parts, as in 2/5; got {self.fold!r}.")
        return (int(number) - 1) / int(count), int(number) / int(count)


DEFAULT_METHOD = "tp-topk"
"""The method of models other than the additive one."""


@dataclass(frozen=True, init=False)
class MethodConfig:
    """The training method by name, and the options that were given for it.

    Every option of every method is an attribute; it is ``None`` where it was not given and the method's own default
    applies. ``given`` holds the others, in a fixed order. ``chosen`` is false where nothing was given at all.
    """

    name: str
    given: tuple[tuple[str, Any], ...]
    chosen: bool = field(compare=False)

    def __init__(self, name: str | None = None, **options: object) -> None:
        for key in options:
            if key not in method_options():
                raise ArgumentError(f"No method has an option {key!r}{_hint(key, method_options())}")
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        given = tuple((key, values[key]) for key in method_options() if values.get(key) is not None)
        object.__setattr__(self, "name", DEFAULT_METHOD if name is None else name)
        object.__setattr__(self, "given", given)
        object.__setattr__(self, "chosen", name is not None or bool(given))

    def __getattr__(self, key: str) -> Any:
        if key not in method_options():
            raise AttributeError(f"MethodConfig has no attribute {key!r}")
        return self.options.get(key)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, for ``make_plan``."""
        return dict(self.given)

    def changed(self, name: str | None = None, **options: object) -> MethodConfig:
        """The same with another name or other options; ``None`` takes an option back."""
        return MethodConfig(name or self.name, **{**self.options, **options})  # chosen from now on


@dataclass(frozen=True)
class PrivacyConfig:
    """The promise."""

    epsilon: float = option("Promised ε; inf trains without noise.", 3.0)
    delta: float | None = option(
        "Promised δ, below 1 / examples.", None, shown="1e-5, or 0.1 / examples if that is smaller"
    )
    relation: Literal["add-or-remove-one", "replace-one", "zero-out"] = option(
        "Which data sets count as neighbours: one unit more or less, one with other contents, or one that counts for "
        "nothing.",
        "add-or-remove-one",
    )
    accountant: str = option("What computes ε: pld, rdp or theorem-4.1 (the TP-TopK paper's).", "pld")


@dataclass(frozen=True)
class TrainingConfig:
    """How to train."""

    batch_size: int | None = option(
        "Expected examples per step, and the divisor of every step.",
        None,
        shown="the power of two nearest to 8 √examples; examples / 16, from 512 to 4096, for the additive model",
    )
    epochs: float | None = option(
        "Expected passes over the examples.",
        None,
        shown="40; 20 for images, 5 for fine-tuning; 400 steps for the additive model, 300 for text-linear, 75 "
        "with adafest",
    )
    clip_norm: float | tuple[float, ...] | None = option(
        "Bound on each example's gradient; or one per noise level, e.g. 1,0.5.",
        None,
        shown="1; 0.1 on fixed features and for text-linear",
    )
    optimizer: Literal["sgd", "adam"] = option("Optimizer.", "sgd")
    learning_rate: float | None = option(
        "Learning rate.",
        None,
        shown="1; by a rule for the additive model and text-linear; 0.1 to fine-tune more than the last layer; 0.01 "
        "with adam",
    )
    momentum: float | None = option("Momentum of sgd.", None, shown="0; 0.9 for the additive model")
    weight_decay: float = option("Weight decay, on active coordinates only.", 0.0)
    schedule: Literal["constant", "linear", "cosine"] | None = option(
        "Learning rate over the run.", None, shown="constant; linear for the additive model and text-linear"
    )
    average: float | None = option(
        "Decay of a running average of the weights, e.g. 0.99.", None, shown="no average"
    )
    chunk_size: int | None = option(
        "Examples in memory at once; changes memory and speed, not the result.", None, shown="automatic"
    )
    isolation: Literal["probed", "construction"] = option(
        "How examples are kept apart: probed runs them together after a check of the model, construction runs each by "
        "itself, which is slower.",
        "probed",
    )
    lazy_noise: bool = option(
        "Draw the noise of an embedding table's rows when they are next read: the same mechanism at the cost of what a "
        "batch touches, which pays for large tables; for dp-sgd with plain sgd.",
        False,
    )
    tune: bool = option(
        "Train with two learning rates, within the same ε, and keep the run that is better on a fifth of the training "
        "examples, which is set apart; for dp-sgd.",
        False,
    )
    seed: int | None = option(
        "Reproducible noise, for experiments only: such a run is not for release.", None
    )


@dataclass(frozen=True)
class DeploymentConfig:
    """What only the owner of a model knows, for its entry in a public registry; it changes nothing about a run."""

    name: str | None = option("Name of what is published.", None)
    curators: tuple[str, ...] = option("Who publishes it.", ())
    description: str | None = option("What it is, in a sentence or two.", None)
    intended_use: str | None = option("What it is for.", None)
    region: str | None = option("The region that the data describes, or whose laws apply.", None)
    sector: str | None = option("Technology, Healthcare, Education, Government, Energy or Finance.", None)
    publication_date: str | None = option("Day of publication, YYYY-MM-DD.", None, shown="the certificate's")
    authors: tuple[str, ...] = option("Who wrote the entry.", ())
    data_domain: str | None = option("Which data sets could have been trained on.", None)
    actors: str | None = option("Who sees what, and who is trusted with it.", None)
    preprocessing: str | None = option(
        "How the data was prepared, and settings chosen, before training.", None
    )
    justification: str | None = option("Why ε, the unit and the rest are what they are.", None)
    sources: str | None = option("Links to papers, posts or the model.", None)
    notes: str | None = option("Anything else.", None)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what a run does; ``deployment`` is what its owner says about it for a registry."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)


SECTIONS: Mapping[str, Mapping[str, Option]] = {
    "data": options_of(DataConfig),
    "model": options_of(ModelConfig),
    "method": {
        "name": Option(
            "name",
            str,
            f"Training method: {', '.join(METHODS)}.",
            None,
            flag="--method",
            shown=f"{DEFAULT_METHOD}; dp-sgd for the additive model and text-linear",
        ),
        **method_options(),
    },
    "privacy": options_of(PrivacyConfig),
    "training": options_of(TrainingConfig),
    "deployment": options_of(DeploymentConfig),
}
"""Every option of a run, by section: what a configuration file may say and the command line offers."""

FINETUNING = ("last-layer", "sparta", "full", "bitfit", "random-rows", "magnitude-rows", "lora", "tp-topk")
"""The methods of fine-tuning a pretrained network; the first is the default."""


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
    kinds = typing.get_type_hints(Experiment)
    for name in record:
        if name not in SECTIONS:
            raise ArgumentError(f"There is no section [{name}]{_hint(name, SECTIONS)}")
    return Experiment(**{name: kinds[name](**_checked(name, values)) for name, values in record.items()})


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
        for section, values in _values(experiment).items()
    }


def _values(experiment: Experiment) -> dict[str, dict[str, Any]]:
    return {
        section: {key: getattr(getattr(experiment, section), key) for key in options}
        for section, options in SECTIONS.items()
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
    """The experiment as TOML, with every default; what is not set is written as a comment."""
    lines = []
    for section, values in _values(experiment).items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            lines.append(f"# {key} is not set" if value is None else f"{key} = {toml_value(value)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _checked(section: str, values: Any) -> dict[str, Any]:
    """The values of a section, each as a type that its option takes."""
    if not isinstance(values, Mapping):
        raise ArgumentError(f"[{section}] must be a table of keys and values.")
    options = SECTIONS[section]
    for key in values:
        if key not in options:
            raise ArgumentError(f"[{section}] has no key {key!r}{_hint(key, options)}")
    return {key: _value(section, key, value, options[key].kind) for key, value in values.items()}


def _value(section: str, key: str, value: Any, kind: Any) -> Any:
    """``value`` as one of the types that ``kind`` allows."""
    allowed = alternatives(kind)
    for one in allowed:
        found = _as(value, one)
        if found is not None:
            return found
    words = " or ".join(_word(one) for one in allowed if one is not type(None))
    raise ArgumentError(f"{key} in [{section}] must be {words}, got {value!r}.")


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
    return did_you_mean(name, known, otherwise=f"; there are {', '.join(known)}.")


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return list(value) if isinstance(value, tuple) else value
