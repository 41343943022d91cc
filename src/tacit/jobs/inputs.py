"""What a trained model takes and answers: public facts, kept beside it, so that new data needs no old data.

A table is read by the schema of the run; images and texts by what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from tacit.data import Schema, Task
from tacit.data.encode import encode
from tacit.data.table_file import Table
from tacit.data.task import KINDS, ImageInput, Kind
from tacit.errors import FileError, TacitError, is_number
from tacit.files import read_json, write_json
from tacit.jobs.problem import Problem
from tacit.runs.layout import INPUTS_FILE

_FORMAT = "tacit-inputs-1"


@dataclass(frozen=True)
class Inputs:
    """Kind and classes of the answers, and the shape of what the network takes.

    ``image`` says how images become tensors. ``vocabulary`` is the number of token ids where the network takes them.
    """

    name: str
    kind: Kind
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    image: ImageInput | None = None
    vocabulary: int | None = None

    def blank_task(self, schema: Schema | None) -> Task:
        """The task that the network was built for, without a single example."""
        nothing = TensorDataset(torch.zeros(0, *self.shape), torch.zeros(0, 1))
        facts: dict[str, Any] = {}
        if schema is not None:
            empty = Table("schema", {name: [] for name in schema.columns}, 0, 1)
            encoded = encode(empty, schema)
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
            image=self.image,
            schema=schema,
            **facts,
        )


def inputs_of(problem: Problem) -> Inputs | None:
    """What a model of ``problem`` takes and answers; nothing is known where the user brought a bare dataset."""
    task = problem.task
    if task is None:
        return None
    return Inputs(task.name, task.kind, task.classes, task.input_shape, task.image, task.vocabulary)


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write the file of a run."""
    image = None if inputs.image is None else vars(inputs.image)
    write_json(run_dir / INPUTS_FILE, {"format": _FORMAT, **vars(inputs), "image": image})


def read_inputs(path: Path) -> Inputs:
    """Read what ``write_inputs`` wrote; every value is checked."""
    record = read_json(path)
    try:
        if not isinstance(record, Mapping) or record.get("format") != _FORMAT:
            raise ValueError("it has another format")
        kind, classes, image = record["kind"], record["classes"], record["image"]
        vocabulary = record["vocabulary"]
        if kind not in KINDS or not all(isinstance(name, str) for name in [record["name"], *classes]):
            raise ValueError("its kind or classes are none")
        if not (vocabulary is None or (type(vocabulary) is int and 0 < vocabulary < 2**31)):
            raise ValueError("its vocabulary is none")
        found = Inputs(
            record["name"],
            kind,
            tuple(classes),
            _shape(record["shape"]),
            None if image is None else _image(image),
            vocabulary,
        )
        found.blank_task(None)  # as many classes as its kind has
    except (KeyError, TypeError, ValueError, TacitError) as error:
        raise FileError(f"{path} is not from this version of Tacit, or was edited: {error}.") from error
    return found


def _shape(sizes: Any) -> tuple[int, ...]:
    total = 1
    for size in sizes:
        if type(size) is not int or not 0 < size <= 2**24:
            raise ValueError("its shape is none")
        total *= size
    if not sizes or total > 2**28:
        raise ValueError("its shape is none")
    return tuple(sizes)


def _image(record: Any) -> ImageInput:
    channels, height, width = _shape(record["shape"])
    low, high = record["low"], record["high"]
    if not is_number(low) or not is_number(high) or not low < high or channels not in (1, 3):
        raise ValueError("its images are none")
    return ImageInput((channels, height, width), float(low), float(high))
