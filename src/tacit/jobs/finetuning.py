"""Fine-tuning jobs: what of a pretrained network each method trains, and a frozen prefix computed once.

The weights of a frozen prefix are public and never change, so what it makes of an example depends on that example
alone: training on its outputs is the same mechanism as training the whole network, at the cost of the blocks that are
trained.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit.data import Task
from tacit.data.company import same_sized
from tacit.errors import ArgumentError
from tacit.jobs.defaults import default_batch_size, head_training
from tacit.jobs.problem import Problem
from tacit.jobs.settings import FINETUNING, Experiment, MethodConfig, TrainingConfig
from tacit.jobs.starts import FEATURE_SIZE
from tacit.models import MobileNetV2
from tacit.models.config import ModelConfig
from tacit.models.encoder import MINILM, TextEncoder
from tacit.models.patterns import biases, vectors
from tacit.models.pretrained import IMAGE_SIZE, LORA_RANK, MOBILENET, PUBLIC, anatomy, build_network, is_text
from tacit.waiting import awaited

FIXED = ("full", "last-layer", "bitfit", "lora")
ACTIVE_RATIO = 0.1
MODULE_RATIO = 0.5
"""The share of the layers that keep their low-rank correction, where they are chosen."""
EPOCHS = 5.0
HEAD_EPOCHS = 1.0
FEATURE_LENGTH = 40.0
"""About the length of what MobileNetV2 gives its last layer."""
LEAST_STEPS = 60
"""Steps that training takes at least, unless epochs are given."""
LEARNING_RATE = 0.1
CHUNK_SIZE = 64
_WITH_BLOCKS = (MobileNetV2, TextEncoder)


def with_network(experiment: Experiment) -> Experiment:
    """``experiment`` with a network that suits its data, public weights, and a tokenizer where it reads texts."""
    data, model, training = experiment.data, experiment.model, experiment.training
    name = model.name or (MINILM if data.source == "sst2" or data.text is not None else MOBILENET)
    if is_text(name) and data.tokenizer is None:
        data = replace(data, tokenizer=name)
    if data.image_size is None and Path(data.source).is_dir():
        data = replace(data, image_size=IMAGE_SIZE)
    return replace(
        experiment,
        data=data,
        model=replace(model, name=name, weights=model.weights or PUBLIC),
        training=replace(training, chunk_size=training.chunk_size or CHUNK_SIZE),
    )


def on_features(experiment: Experiment) -> Experiment:
    """``experiment`` with a linear layer on fixed features of its images in place of a network's last layer."""
    data, model, method = experiment.data, experiment.model, experiment.method
    given = [
        name
        for name, value in vars(model).items()
        if value is not None and name not in ("name", "image_size")
    ]
    if model.name is not None or given:
        option = "model" if model.name is not None else given[0]
        raise ArgumentError(
            f"features stand in place of a network; leave out {_flag(option)}, or --features."
        )
    if method.name != "last-layer" or method.given:
        raise ArgumentError("On features only a last layer is trained; leave out --method and its options.")
    if data.image_size is None and Path(data.source).is_dir():
        data = replace(data, image_size=FEATURE_SIZE)
    return replace(experiment, data=data, model=ModelConfig(), method=MethodConfig())


def with_trained_part(experiment: Experiment, outputs: int, examples: int) -> Experiment:
    """``experiment`` with a training method in place of a way to fine-tune, and every pattern of names decided.

    ``full`` trains all that is not frozen, ``last-layer`` the head, ``bitfit`` head and biases, ``lora`` head and
    low-rank corrections, of all layers or, with ``choose``, of those that private scores choose. The others choose
    among the weights; head, biases and norms are always active, or the head and what ``always_active`` names.
    """
    method, model = experiment.method, experiment.model
    if method.name not in FINETUNING:
        raise ArgumentError(
            f"There is no way to fine-tune called {method.name!r}; there are {', '.join(FINETUNING)}."
        )
    if model.base_precision is not None:
        raise ArgumentError("--base-precision is for language models; leave it out without --task generate.")
    if method.name == "lora":
        model = replace(model, lora_rank=LORA_RANK if model.lora_rank is None else model.lora_rank)
    elif model.lora_rank is not None or model.lora_layers is not None:
        raise ArgumentError("--lora-rank and --lora-layers are for the method lora.")
    if method.name in FIXED and method.given and not _chooses_corrections(method):
        given = next((key for key in ("active_ratio", "rows") if key in method.options), method.given[0][0])
        named = "--active-ratio and --rows are" if given in ("active_ratio", "rows") else f"{_flag(given)} is"
        chosen = ", ".join(other for other in FINETUNING if other not in FIXED)
        layers = ". Say --choose modules to choose layers" if method.name == "lora" else ""
        raise ArgumentError(f"{method.name} makes no choice of rows; {named} for {chosen}{layers}.")
    network = build_network(model, outputs, experiment.data.data_dir)
    training = _rates(experiment, network, examples)
    if method.name == "last-layer" and model.frozen_blocks is None and isinstance(network, _WITH_BLOCKS):
        # Nothing below the head moves, so the blocks are computed only once; of a text encoder, all but the last.
        own = isinstance(network, MobileNetV2)
        model = replace(model, frozen_blocks=network.blocks_in_all - (not own) or None)
    return replace(
        experiment,
        model=model,
        method=_method(method, network, anatomy(model).head, training.epochs or EPOCHS),
        training=training,
    )


def _rates(experiment: Experiment, network: nn.Module, examples: int) -> TrainingConfig:
    """What training leaves open, from public numbers.

    Noise on pretrained weights does more harm than on a fresh head, so they move in smaller steps. Few images make few
    steps in an epoch, and training needs some steps, however many images there are.
    """
    training, last = experiment.training, experiment.method.name == "last-layer"
    if last and isinstance(network, MobileNetV2):
        return head_training(training, examples, experiment.privacy.epsilon, length=FEATURE_LENGTH)
    batch = default_batch_size(examples) if training.batch_size is None else training.batch_size
    epochs = max(EPOCHS, LEAST_STEPS * batch / examples) if training.epochs is None else training.epochs
    rate = training.learning_rate
    if rate is None and training.optimizer == "sgd":
        rate = 1.0 if last else LEARNING_RATE
    return replace(training, epochs=epochs, learning_rate=rate)


def _method(method: MethodConfig, network: nn.Module, head: tuple[str, ...], epochs: float) -> MethodConfig:
    name = method.name
    if _chooses_corrections(method):
        chosen = method.active_ratio if method.rows is not None else method.active_ratio or MODULE_RATIO
        method = method.changed("sparta", active_ratio=chosen, score=method.score or "votes")
        method = method.changed(always_active=method.always_active or head)
        name = "sparta"
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
        # Under a head that knows nothing every row scores alike, so the head learns first.
        first = min(HEAD_EPOCHS, epochs / 4) if method.head_epochs is None else method.head_epochs
        scored = min(1.0, epochs / 4) if method.selection_epochs is None else method.selection_epochs
        return method.changed(
            head=head, active_ratio=ratio, always_active=always, head_epochs=first, selection_epochs=scored
        )
    return method.changed(active_ratio=ratio, always_active=always)


def _chooses_corrections(method: MethodConfig) -> bool:
    """Whether private scores choose the layers that get a low-rank correction."""
    return method.name == "lora" and method.choose == "modules"


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
    count = len(data)  # type: ignore[arg-type]
    loader = DataLoader(data, batch_size=_CHUNK)
    with torch.no_grad():
        for x, y in awaited(loader, len(loader), f"Computing the frozen blocks of {count:,} examples"):
            outputs.append(same_sized(lambda few: network.blocks(few, blocks).contiguous(), x, _CHUNK))
            targets.append(y)
    return TensorDataset(torch.cat(outputs), torch.cat(targets))
