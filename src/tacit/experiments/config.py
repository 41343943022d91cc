"""The description of an experiment: five sections of plain values, as they stand in a TOML file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from tacit.data.task import Kind


@dataclass(frozen=True)
class DataConfig:
    """What to train on.

    ``source`` is a built-in data set, a CSV or Parquet file, a folder of images or an import path
    ``module:object``. ``prevalence`` is the publicly known share of the positive class: predictions above it
    count as positive (0.5 unless given). ``tokenizer`` names a checkpoint whose tokenizer makes ids of the texts
    (of the column ``text``, where the source is a table), at most ``length`` each. ``examples`` trains on the first
    ones only.
    ``features`` names a fixed transform of images (``tacit.features``).
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
class ModelConfig:
    """A model by name or import path. ``width``, ``depth`` and ``heads`` are options of the named ones.

    With ``weights`` it is pretrained: "public", or a safetensors file. Then ``head`` are the patterns of its fresh
    head, ``freeze`` those of parameters that are not trained, ``frozen_blocks`` the number of blocks at its beginning
    that are frozen and computed once, ``lora_rank`` the rank of corrections of the layers ``lora_layers``, and
    ``image_size`` the side to which images are resized.
    """

    name: str | None = None
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    weights: str | None = None
    head: tuple[str, ...] | None = None
    freeze: tuple[str, ...] | None = None
    frozen_blocks: int | None = None
    lora_rank: int | None = None
    lora_layers: tuple[str, ...] | None = None
    image_size: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """The options that were given."""
        given = {"width": self.width, "depth": self.depth, "heads": self.heads}
        return {name: value for name, value in given.items() if value is not None}


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
