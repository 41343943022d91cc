"""Whether a pretrained network can read a task's examples and answer in its classes."""

from __future__ import annotations

import torch

from tacit.data import Task
from tacit.errors import ArgumentError
from tacit.experiments.config import ModelConfig
from tacit.finetuning.network import MOBILENET, build_network, is_text


def check_reads(model: ModelConfig, task: Task) -> None:
    """Refuse a network for images where there are none, before its weights are fetched."""
    if model.name == MOBILENET and len(task.input_shape) != 3:
        raise ArgumentError(
            f"{MOBILENET} reads images and {task.name!r} has none; for a column of texts say --text with its name, "
            "for a table use tacit train."
        )


def check_answers(model: ModelConfig, task: Task, data_dir: str | None) -> None:
    """Refuse a network of the user's own that does not take the examples, or has other outputs than needed."""
    if model.name == MOBILENET or is_text(model.name):
        return
    network = build_network(model, task.outputs, data_dir).eval()
    kind = torch.float32 if task.vocabulary is None else torch.int64
    try:
        with torch.no_grad():
            answer = network(torch.zeros(2, *task.input_shape, dtype=kind))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ArgumentError(
            f"{model.name!r} does not take examples of shape {task.input_shape} of {task.name!r}: {reason}."
        ) from error
    shape = tuple(answer.shape)
    if shape != (2, task.outputs) and (task.outputs > 1 or shape != (2,)):
        raise ArgumentError(
            f"{model.name!r} answers two examples of {task.name!r} with shape {shape}, not {(2, task.outputs)}: one "
            "output for two classes, else one per class. Change its head."
        )
