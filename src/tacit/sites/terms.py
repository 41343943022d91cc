"""The terms of a training: what all parties know beforehand, in one public file.

The schema says how rows become numbers, the model what is trained. Rounds, sampling rate and clip norm are the same at
every site, so that a site can plan its noise before the first question. Nothing here comes from anybody's rows.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.data import Schema, Task, read_schema
from tacit.data.encode import empty_table, encode
from tacit.data.records import check_public
from tacit.data.schema import schema_from_dict, schema_text
from tacit.errors import ArgumentError, FileError, is_number
from tacit.federated.own_records import check_two_classes, feature_names
from tacit.federated.protocol import ProtocolError, Question, read_question
from tacit.files import decode_toml, toml_value, write_text
from tacit.jobs.problem import Problem
from tacit.jobs.settings import Experiment, TrainingConfig
from tacit.jobs.setup import build_model, loss_of
from tacit.losses import Loss
from tacit.models.config import ModelConfig
from tacit.runs.layout import CHECKPOINT_FILE, MODEL_FILE
from tacit.sites.masks import check_public as check_key
from tacit.sites.options import Local, SecureSum, Training, training_of
from tacit.tensors import read_tensors
from tacit.training.answering import MOST_WEIGHT

TERMS_FILE = "training.toml"
L2 = 1e-4
"""Regularisation of a local training."""
LONGEST_START = 1 << 23
"""Characters of the weights that a training starts at: terms are a file that people send each other."""
_BEFORE = (("method", "dp-sgd"), ("spare", 0))
"""What terms meant before they could say it. They still mean it, and are the same file, where it is not said."""


@dataclass(frozen=True)
class Terms:
    """A training and the schema of its records. ``digest`` names both: a question for other terms is refused.

    With ``sum`` nobody learns more than the sum over all sites, whose keys stand in the terms. ``start`` holds the
    weights that an earlier training has reached, where this one goes on from them. With ``local`` every site is one
    client under local differential privacy.
    """

    training: Training
    schema: Schema
    sum: SecureSum | None = None
    start: str | None = None
    local: Local | None = None

    def __post_init__(self) -> None:
        check_public(self.schema)
        for key in self.members.values():
            check_key(key)
        if self.local is not None:
            if self.sum is not None or self.start is not None or self.training.method != "dp-sgd":
                raise ArgumentError(
                    "A local training has no secure sum, no start and no method; leave them out."
                )
            if self.training.model != "logistic":
                raise ArgumentError("A local training is of the logistic model; say --model logistic.")
            check_two_classes(self.schema)
            try:
                self.question(1)
            except ProtocolError as error:
                raise ArgumentError(f"No site answers such a training: {error}") from error

    @property
    def members(self) -> dict[str, str]:
        """The public keys of the sites, by name, where only their sum can be read."""
        return {} if self.sum is None else dict(self.sum.members)

    def question(self, number: int) -> Question:
        """What a local training asks in a round: all of it follows from the terms, so a server chooses nothing else."""
        assert self.local is not None
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return read_question(
            asdict(
                Question(
                    training=f"{self.training.name[:47]}-{digest[:16]}",
                    round=number,
                    rounds=self.training.rounds,
                    d=len(feature_names(self.schema)),
                    model="logistic",
                    l2=L2,
                    select="ps",
                    perturb="pm",
                    epsilon=float(self.local.epsilon),
                    mu=0.1,
                    top_share=0.1,
                    momentum=0.0,
                    solution=self.local.solution,
                    clip_norm=float(self.training.clip_norm),
                )
            )
        )

    @cached_property
    def text(self) -> str:
        """The file."""
        lines = ["# The terms of a training: public, the same file for every site.", "[training]"]
        lines += [
            f"{field.name} = {toml_value(value)}"
            for field in fields(self.training)
            if (value := getattr(self.training, field.name)) is not None
            and (field.name, value) not in _BEFORE
        ]
        if self.sum is not None:
            lines += ["", "[sum]", f"noise_multiplier = {self.sum.noise_multiplier!r}"]
            lines += [f"honest = {self.sum.honest}"]
            lines += [] if self.sum.fewest is None else [f"fewest = {self.sum.fewest}"]
            lines += ["", "[sum.members]"]
            lines += [f"{toml_value(name)} = {toml_value(key)}" for name, key in self.sum.members]
        if self.local is not None:
            lines += ["", "[local]", f"epsilon = {self.local.epsilon!r}"]
            lines += [f"solution = {toml_value(self.local.solution)}"]
        if self.start is not None:
            lines += ["", "[start]", f"weights = {toml_value(self.start)}"]
        return "\n".join(lines) + "\n\n" + schema_text(self.schema)

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def loss(self) -> Loss:
        """The loss of a record."""
        return loss_of(self.schema.target.kind, self.training.model)

    @cached_property
    def task(self) -> Task:
        """The task without a single record."""
        encoded = encode(empty_table(self.schema), self.schema)
        target = self.schema.target
        nothing = TensorDataset(torch.zeros(0, encoded.x.shape[1]), torch.zeros(0, 1))
        return Task(
            name=self.training.name,
            train=nothing,
            held_out=None,
            kind=target.kind,
            input_shape=(encoded.x.shape[1],),
            classes=target.classes,
            features=encoded.names,
            numbers=encoded.numbers,
            columns=encoded.columns,
            schema=self.schema,
        )

    @property
    def problem(self) -> Problem:
        """The problem without a single record."""
        task = self.task
        return Problem(task.name, task.train, None, task.kind, (), task, self.schema)

    @property
    def experiment(self) -> Experiment:
        """The training in the words of a job, as far as it goes."""
        model = ModelConfig(name=self.training.model, **self.training.options)
        return Experiment(model=model, training=TrainingConfig(seed=0))

    def build_model(self) -> nn.Module:
        """The model before the first round, the same for everybody; the random generators stay as they are."""
        with torch.random.fork_rng(devices=[]):
            model = build_model(self.experiment, self.problem)
        if self.start is not None:
            _put(_unpacked(self.start), model)
        return model

    def write(self, path: Path) -> None:
        """Write the file."""
        write_text(path, self.text)


def read_terms(path: Path) -> Terms:
    """Read the terms of a training; every key is checked."""
    try:
        raw = decode_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is no readable file of terms: {error}.") from error
    training, sums, start, local = (raw.pop(name, None) for name in ("training", "sum", "start", "local"))
    known = {field.name: field for field in fields(Training)}
    if not isinstance(training, dict) or not set(training) <= set(known):
        raise FileError(f"{path} needs a table [training] with {', '.join(known)} and nothing else.")
    try:
        terms = Terms(
            training_of(dict(_BEFORE) | training),
            schema_from_dict(raw, str(path)),
            _sum_of(sums),
            _start_of(start),
            _local_of(local),
        )
        if terms.start is not None:
            terms.build_model()  # refuses weights of another model
        return terms
    except ArgumentError as error:
        raise FileError(f"{path}: {error}") from error


def _sum_of(raw: object) -> SecureSum | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or set(raw) - {"fewest"} != {"noise_multiplier", "honest", "members"}:
        raise ArgumentError("[sum] needs noise_multiplier, honest and members, and may have fewest.")
    members = raw["members"]
    if not isinstance(members, dict) or not all(isinstance(key, str) for key in members.values()):
        raise ArgumentError("[sum.members] gives every site a name and its public key.")
    return SecureSum(raw["noise_multiplier"], raw["honest"], tuple(members.items()), raw.get("fewest"))


def _start_of(raw: object) -> str | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or set(raw) != {"weights"} or not isinstance(raw["weights"], str):
        raise ArgumentError("[start] needs weights, and nothing else.")
    return str(raw["weights"])


def _local_of(raw: object) -> Local | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or set(raw) != {"epsilon", "solution"} or not is_number(raw["epsilon"]):
        raise ArgumentError("[local] needs epsilon, a number, and solution.")
    return Local(raw["epsilon"], str(raw["solution"]))


def _unpacked(text: str) -> dict[str, Tensor]:
    if len(text) > LONGEST_START:
        raise ArgumentError("The model is too large to stand in the terms of a training; start anew.")
    try:
        return load(base64.b64decode(text, validate=True))
    except (ValueError, SafetensorError) as error:
        raise ArgumentError("The weights under [start] cannot be read.") from error


def _put(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Start a model at weights that fit it, or refuse them."""
    expected = model.state_dict()
    if {name: (w.shape, w.dtype) for name, w in weights.items()} != {
        name: (w.shape, w.dtype) for name, w in expected.items()
    }:
        raise ArgumentError("The weights under [start] are not those of the agreed model.")
    if not all(bool((w.abs() <= MOST_WEIGHT).all()) for w in weights.values()):
        raise ArgumentError(f"The weights under [start] must be finite and within ±{MOST_WEIGHT:g}.")
    model.load_state_dict(weights)


def terms_of(
    training: Training, schema_file: Path, sums: SecureSum | None = None, local: Local | None = None
) -> Terms:
    """The terms of a training on records that a schema file describes."""
    return Terms(training, read_schema(schema_file), sums, local=local)


def extended(folder: Path, training: Training, sums: SecureSum | None = None) -> Terms:
    """The terms of a training that goes on where the one in ``folder`` has ended or was left, with its schema.

    It is a training of its own: every site agrees to it anew, with a budget of its own, and what a site has spent
    before stays spent.
    """
    before = read_terms(folder / TERMS_FILE)
    weights = _reached(folder, before)
    start = base64.b64encode(save(weights)).decode("ascii")
    terms = Terms(training, before.schema, sums, start)
    terms.build_model()
    return terms


def _reached(folder: Path, terms: Terms) -> dict[str, Tensor]:
    """The weights of a training: of its end, or of its last round where a site left it for good."""
    if (folder / MODEL_FILE).is_file():
        return read_tensors(folder / MODEL_FILE)[0]
    if not (folder / CHECKPOINT_FILE).is_file():
        raise FileError(f"{folder} has no model yet; begin that training first: tacit fed run {folder}.")
    tensors, numbers = read_tensors(folder / CHECKPOINT_FILE)
    if numbers.get("terms") != terms.digest:
        raise FileError(f"The checkpoint in {folder} belongs to a training with other terms.")
    prefix = "model:"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
