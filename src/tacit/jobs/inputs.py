"""What a trained model takes and answers: public facts, kept beside it, so that new data needs no old data.

A table is read by the schema of the run; images and texts by what is written here. The certificate names the digest of
this file: whoever changes how data is read changes what is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit.data import Schema, Task, resolve_as
from tacit.data.bags import Bags, bags_from_record
from tacit.data.encode import empty_table, encode
from tacit.data.task import KINDS, ImageInput, Kind
from tacit.errors import ArgumentError, FileError, TacitError, check_share, is_number
from tacit.files import read_json, write_json
from tacit.jobs.problem import Problem
from tacit.jobs.settings import Experiment, experiment_of
from tacit.jobs.setup import prevalence_of
from tacit.models import build
from tacit.models.config import ModelConfig
from tacit.runs.layout import INPUTS_FILE

_FORMAT = "tacit-inputs-1"
_TEXTS = ("features", "tokenizer", "text")
PRETRAINED = "public"
"""Replaces the path of pretrained weights, which are in the model's own file now."""


@dataclass(frozen=True)
class Inputs:
    """What predictions need to know besides the weights and, for a table, its schema.

    name:       the data, for messages.
    kind:       the kind of answers.
    classes:    their names; empty for regression and where the user brought a bare dataset.
    shape:      the shape of one input of the network; empty where it is not known.
    model:      the network by name, or the code it is.
    image:      how images become tensors.
    vocabulary: the number of token ids, where the network takes them.
    prevalence: the publicly known share of positives, which decides from where on a row counts as positive.
    features:   the fixed features that were computed from images.
    signature:  what these features answer to a few fixed images, so that other ones are not taken for them.
    tokenizer:  the checkpoint whose tokenizer made token ids.
    text:       the column of a table that holds the texts.
    length:     how many tokens of a text are read.
    bags:       how texts become bags of words, where they do.
    """

    name: str
    kind: Kind
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    model: ModelConfig
    image: ImageInput | None = None
    vocabulary: int | None = None
    prevalence: float | None = None
    features: str | None = None
    signature: tuple[float, ...] | None = None
    tokenizer: str | None = None
    text: str | None = None
    length: int | None = None
    bags: Bags | None = None

    @property
    def own_code(self) -> bool:
        """Whether the network is code of its author, by import path."""
        return ":" in (self.model.name or "")

    @property
    def of_texts(self) -> bool:
        """Whether texts are read."""
        return self.vocabulary is not None or self.tokenizer is not None

    def blank_model(self, schema: Schema | None) -> nn.Module:
        """The network as it was built for the run, with weights that mean nothing. Own code is imported."""
        # Whoever predicts keeps the state of the random generators.
        with torch.random.fork_rng(devices=[]):
            if self.model.weights is not None:
                from tacit.models.pretrained import build_network  # transformers takes seconds to load

                outputs = len(self.classes) if self.kind == "multiclass" else 1
                return build_network(self.model, outputs, None, public=False)
            if self.own_code:
                return resolve_as(self.model.name or "", nn.Module)
            return build(self.model.name or "", self._blank_task(schema), **self.model.options)

    def _blank_task(self, schema: Schema | None) -> Task:
        """The task that the network was built for, without a single example."""
        nothing = TensorDataset(torch.zeros(0, *self.shape), torch.zeros(0, 1))
        facts: dict[str, Any] = {}
        if schema is not None:
            encoded = encode(empty_table(schema), schema)
            if (encoded.x.shape[1],) != self.shape:
                raise FileError(
                    f"The schema describes {encoded.x.shape[1]} features and the model takes {self.shape}: one of the "
                    "two was changed."
                )
            facts = {"features": encoded.names, "numbers": encoded.numbers, "columns": encoded.columns}
        return Task(
            name=self.name,
            train=nothing,
            held_out=nothing,
            kind=self.kind,
            input_shape=self.shape,
            classes=self.classes,
            vocabulary=self.vocabulary,
            bags=self.bags,
            **facts,
        )


def inputs_of(experiment: Experiment, problem: Problem, *, signed: bool = True) -> Inputs:
    """What the model of an experiment takes and answers; features are computed on a few fixed images to be signed."""
    task, data = problem.task, experiment.data
    model = experiment.model
    return Inputs(
        name=Path(problem.name).name,
        kind=problem.kind,
        classes=() if task is None else task.classes,
        shape=() if task is None else task.input_shape,
        model=model if model.weights is None else replace(model, weights=PRETRAINED),
        image=None if task is None else task.image,
        vocabulary=None if task is None else task.vocabulary,
        prevalence=prevalence_of(experiment, problem),
        features=data.features,
        signature=_signature(data.features, task) if signed else None,
        tokenizer=data.tokenizer,
        text=data.text,
        length=data.length,
        bags=None if task is None else task.bags,
    )


def _signature(features: str | None, task: Task | None) -> tuple[float, ...] | None:
    if features is None or task is None or task.image is None:
        return None
    from tacit.data.features import signature  # only images need it

    return signature(features, task.image.shape)


def inputs_of_table(experiment: Experiment, schema: Schema) -> Inputs:
    """The same for a table of which only the schema is known."""
    shape = (encode(empty_table(schema), schema).x.shape[1],)
    return Inputs(
        name=Path(experiment.data.source).name,
        kind=schema.target.kind,
        classes=schema.target.classes,
        shape=shape,
        model=experiment.model,
        prevalence=experiment.data.prevalence,
    )


def inputs_record(inputs: Inputs) -> dict[str, Any]:
    """The content of the file of a run."""
    model = {key: value for key, value in vars(inputs.model).items() if value is not None}
    image = None if inputs.image is None else vars(inputs.image)
    bags = None if inputs.bags is None else inputs.bags.record
    return {"format": _FORMAT, **vars(inputs), "image": image, "model": model, "bags": bags}


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write the file of a run."""
    write_json(run_dir / INPUTS_FILE, inputs_record(inputs))


def read_inputs(path: Path) -> Inputs:
    """Read what ``inputs_record`` gave; every value is checked."""
    record = read_json(path)
    try:
        if not isinstance(record, Mapping) or record.get("format") != _FORMAT:
            raise ValueError("it has another format")
        return _from_record({key: value for key, value in record.items() if key != "format"})
    except (KeyError, TypeError, ValueError, TacitError) as error:
        raise FileError(f"{path} is not from this version of Tacit, or was edited: {error}.") from error


def _from_record(record: dict[str, Any]) -> Inputs:
    record = {"bags": None, "signature": None, **record}  # earlier versions had neither
    if set(record) != {field.name for field in fields(Inputs)}:
        raise ValueError("it has other fields")
    classes, image = record["classes"], record["image"]
    if record["kind"] not in KINDS or not isinstance(classes, list):
        raise ValueError("its kind or classes are none")
    if not all(isinstance(name, str) for name in [record["name"], *classes]):
        raise ValueError("its name or classes are none")
    if not all(record[name] is None or isinstance(record[name], str) for name in _TEXTS):
        raise ValueError("it reads images or texts in a way that is none")
    for name in ("vocabulary", "length"):
        if not (record[name] is None or (type(record[name]) is int and 0 < record[name] < 2**31)):
            raise ValueError(f"its {name} is none")
    signature = record["signature"]
    if signature is not None and not (isinstance(signature, list) and all(map(is_number, signature))):
        raise ValueError("its signature is none")
    if record["prevalence"] is not None:
        check_share("prevalence", record["prevalence"], one_allowed=False)
    found = Inputs(
        **{
            **record,
            "classes": tuple(classes),
            "shape": _shape(record["shape"]) if record["shape"] else (),
            "image": None if image is None else _image(image),
            "signature": None if signature is None else tuple(map(float, signature)),
            "model": experiment_of({"model": record["model"]}).model,
            "bags": None if record["bags"] is None else bags_from_record(record["bags"]),
        }
    )
    if found.bags is not None and (found.vocabulary, found.shape) != (
        found.bags.vocabulary,
        (found.bags.length,),
    ):
        raise ValueError("its bags of words have other sizes than its network takes")
    if found.classes or found.kind == "regression":
        found._blank_task(None)  # has as many classes as its kind
    if found.model.name is None:
        raise ArgumentError("it names no model")
    return found


def _shape(sizes: Any) -> tuple[int, ...]:
    total = 1
    for size in sizes:
        if type(size) is not int or not 0 < size <= 2**24:
            raise ValueError("its shape is none")
        total *= size
    if total > 2**28:
        raise ValueError("its shape is none")
    return tuple(sizes)


def _image(record: Any) -> ImageInput:
    channels, height, width = _shape(record["shape"])
    low, high = record["low"], record["high"]
    if set(record) != {"shape", "low", "high"} or not is_number(low) or not is_number(high) or not low < high:
        raise ValueError("its images are none")
    if channels not in (1, 3):
        raise ValueError("its images are none")
    return ImageInput((channels, height, width), float(low), float(high))
