"""Fine-tuning jobs: what of a pretrained network each method trains, and a frozen prefix computed once.

The weights of a frozen prefix are public and never change, so what it makes of an example depends on that example
alone: training on its outputs is the same mechanism as training the whole network, at the cost of the blocks that are
trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit.data import Task
from tacit.errors import ArgumentError
from tacit.jobs.problem import Problem
from tacit.jobs.settings import FINETUNING, Experiment, MethodConfig, TrainingConfig
from tacit.models import MobileNetV2
from tacit.models.config import ModelConfig
from tacit.models.encoder import MINILM, TextEncoder
from tacit.models.patterns import biases, vectors
from tacit.models.pretrained import LORA_RANK, MOBILENET, PUBLIC, anatomy, build_network, is_text

FIXED = ("full", "last-layer", "bitfit", "lora")
ACTIVE_RATIO = 0.1
EPOCHS = 5.0
LEARNING_RATE = 0.1
CHUNK_SIZE = 64
_WITH_BLOCKS = (MobileNetV2, TextEncoder)


def with_network(experiment: Experiment) -> Experiment:
    """``experiment`` with a network that suits its data, public weights, and a tokenizer where it reads texts."""
    data, model, training = experiment.data, experiment.model, experiment.training
    name = model.name or (MINILM if data.source == "sst2" or data.text is not None else MOBILENET)
    return replace(
        experiment,
        data=replace(data, tokenizer=name) if is_text(name) and data.tokenizer is None else data,
        model=replace(model, name=name, weights=model.weights or PUBLIC),
        training=replace(
            training,
            epochs=EPOCHS if training.epochs is None else training.epochs,
            chunk_size=training.chunk_size or CHUNK_SIZE,
        ),
    )


def with_trained_part(experiment: Experiment, outputs: int) -> Experiment:
    """``experiment`` with a training method in place of a way to fine-tune, and every pattern of names decided.

    ``full`` trains all that is not frozen, ``last-layer`` the head, ``bitfit`` head and biases, ``lora`` head and
    low-rank corrections. The others choose among the weights; head, biases and norms are always active, or the head and
    what ``always_active`` names.
    """
    method, model = experiment.method, experiment.model
    if method.name not in FINETUNING:
        raise ArgumentError(
            f"There is no way to fine-tune called {method.name!r}; there are {', '.join(FINETUNING)}."
        )
    if method.name == "lora":
        model = replace(model, lora_rank=LORA_RANK if model.lora_rank is None else model.lora_rank)
    elif model.lora_rank is not None or model.lora_layers is not None:
        raise ArgumentError("--lora-rank and --lora-layers are for the method lora.")
    if method.name in FIXED and method.given:
        given = next((key for key in ("active_ratio", "rows") if key in method.options), method.given[0][0])
        named = "--active-ratio and --rows are" if given in ("active_ratio", "rows") else f"{_flag(given)} is"
        chosen = ", ".join(other for other in FINETUNING if other not in FIXED)
        raise ArgumentError(f"{method.name} makes no choice of rows; {named} for {chosen}.")
    network = build_network(model, outputs, experiment.data.data_dir)
    if method.name == "last-layer" and model.frozen_blocks is None and isinstance(network, _WITH_BLOCKS):
        # Nothing below the head moves, so all blocks but the last are computed only once.
        model = replace(model, frozen_blocks=max(0, network.blocks_in_all - 1) or None)
    return replace(
        experiment,
        model=model,
        method=_method(method, network, anatomy(model).head),
        training=_with_learning_rate(experiment.training, method.name),
    )


def _with_learning_rate(training: TrainingConfig, method: str) -> TrainingConfig:
    """Noise on pretrained weights does more harm than on a fresh head, so they move in smaller steps."""
    if training.learning_rate is not None or training.optimizer != "sgd":
        return training
    return replace(training, learning_rate=1.0 if method == "last-layer" else LEARNING_RATE)


def _method(method: MethodConfig, network: nn.Module, head: tuple[str, ...]) -> MethodConfig:
    name = method.name
    if name in ("full", "lora"):
        return method.changed("dp-sgd")
    if name == "last-layer":
        return method.changed("only", active=head)
    if name == "bitfit":
        return method.changed("only", active=_joined(head, biases(network)))
    asked = vectors(network) if method.always_active is None else method.always_active
    always = _joined(head, asked)
    ratio = ACTIVE_RATIO if method.active_ratio is None and method.rows is None else method.active_ratio
    if name == "sparta":
        return method.changed(head=head, active_ratio=ratio, always_active=always)
    return method.changed(active_ratio=ratio, always_active=always)


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _joined(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for group in groups for pattern in group))


def check_compatible_data(model: ModelConfig, task: Task) -> None:
    """Refuse a network for images where there are none, before its weights are fetched."""
    if model.name == MOBILENET and len(task.input_shape) != 3:
        raise ArgumentError(
            f"{MOBILENET} reads images and {task.name!r} has none; for a column of texts say --text with its name, "
            "for a table use tacit train."
        )


def check_compatible_outputs(model: ModelConfig, task: Task, data_dir: str | None) -> None:
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


_CHUNK = 128


def with_frozen_prefix(experiment: Experiment, problem: Problem) -> Problem:
    """``problem`` with what the frozen blocks make of each input in place of the input."""
    config = experiment.model
    if not config.frozen_blocks:
        return problem
    if problem.task is None:
        raise ArgumentError("A frozen prefix needs a task that states its shapes; leave frozen_blocks out.")
    network = build_network(
        replace(config, lora_rank=None, lora_layers=None), problem.task.outputs, experiment.data.data_dir
    )
    assert isinstance(network, _WITH_BLOCKS)
    train = _computed(network, config.frozen_blocks, problem.train)
    rest = problem.task.held_out
    held_out = None if rest is None else _computed(network, config.frozen_blocks, rest)
    task = replace(
        problem.task,
        train=train,
        held_out=held_out,
        input_shape=tuple(train.tensors[0].shape[1:]),
        vocabulary=None,
        norm_bound=None,
    )
    return replace(problem, train=train, held_out=held_out, task=task)


def _computed(network: MobileNetV2 | TextEncoder, blocks: int, data: Dataset[Any]) -> TensorDataset:
    outputs: list[Tensor] = []
    targets: list[Tensor] = []
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=_CHUNK):
            outputs.append(network.blocks(x, blocks).contiguous())
            targets.append(y)
    return TensorDataset(torch.cat(outputs), torch.cat(targets))
