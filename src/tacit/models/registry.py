"""Reference models by name, sized for a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tacit.data.sparse_rows import SparseRows
from tacit.data.task import Task
from tacit.errors import ArgumentError, ModelError
from tacit.models.additive import Additive
from tacit.models.mobilenet import MobileNetV2
from tacit.models.networks import (
    EmbeddedWords,
    LinearWords,
    MeanOfWords,
    SmallTransformer,
    UnitLinear,
    WideResNet,
    logistic,
    mlp,
    numel,
    tanh_cnn,
    tanh_cnn_deep,
)
from tacit.name_lists import listed

Builder = Callable[..., nn.Module]


def _vector(task: Task) -> int:
    if task.bags is not None:
        raise ModelError(f"{task.name!r} consists of bags of words; use text-linear or text-embedding.")
    if task.vocabulary is not None:
        raise ModelError(
            f"{task.name!r} consists of token ids; use text-linear, text-mean or text-transformer."
        )
    return numel(task.input_shape)


def _image(task: Task) -> tuple[int, ...]:
    if len(task.input_shape) != 3:
        raise ModelError(
            f"{task.name!r} has inputs of shape {task.input_shape}, which are no images; use mlp."
        )
    return task.input_shape


def _vocabulary(task: Task) -> int:
    if task.vocabulary is None:
        raise ModelError(f"{task.name!r} has no token ids; use mlp or an image model.")
    return task.vocabulary


def _mobilenet(task: Task) -> MobileNetV2:
    channels, height, width = _image(task)
    if channels not in (1, 3) or min(height, width) < 32:
        raise ModelError(
            "mobilenet-v2 takes images of 1 or 3 channels and at least 32 x 32 pixels, not "
            f"{task.input_shape}."
        )
    return MobileNetV2(task.outputs)


def _ids(task: Task) -> int:
    if isinstance(task.train, SparseRows):
        raise ModelError(f"{task.name!r} consists of rows of a sparse matrix; use sparse-linear.")
    return _vocabulary(task)


def _transformer(task: Task, **options: Any) -> SmallTransformer:
    if task.bags is not None:
        raise ModelError(
            f"{task.name!r} consists of bags of words, which have no order; use text-linear or text-embedding."
        )
    return SmallTransformer(_ids(task), task.input_shape[0], task.outputs, **options)


def _additive(task: Task, **options: Any) -> Additive:
    return Additive(_vector(task), task.outputs, task.numbers, task.columns, **options)


MODELS: dict[str, Builder] = {
    "additive": _additive,
    "logistic": lambda task: logistic(_vector(task), task.outputs),
    "unit-linear": lambda task: UnitLinear(_vector(task), task.outputs),
    "centred-linear": lambda task: UnitLinear(_vector(task), task.outputs, centred=True),
    "mlp": lambda task, **options: mlp(_vector(task), task.outputs, **options),
    "tanh-cnn": lambda task: tanh_cnn(_image(task), task.outputs),
    "tanh-cnn-deep": lambda task: tanh_cnn_deep(_image(task), task.outputs),
    "wrn-16-4": lambda task: WideResNet(_image(task)[0], task.outputs),
    "mobilenet-v2": _mobilenet,
    "text-linear": lambda task: LinearWords(_vocabulary(task), task.outputs),
    "sparse-linear": lambda task: LinearWords(_vocabulary(task), task.outputs),
    "text-embedding": lambda task, **options: EmbeddedWords(_vocabulary(task), task.outputs, **options),
    "text-mean": lambda task, **options: MeanOfWords(_ids(task), task.outputs, **options),
    "text-transformer": _transformer,
}


def build(name: str, task: Task, **options: Any) -> nn.Module:
    """Build the model ``name`` with the input and output sizes of ``task`` and fresh random weights.

    Options: ``detail`` for additive, ``width`` and ``depth`` for mlp, ``width`` for text-embedding and text-mean,
    ``width``, ``heads`` and ``depth`` for text-transformer.
    """
    check_known(name)
    try:
        return MODELS[name](task, **options)
    except TypeError as error:
        if not options:
            raise
        raise ArgumentError(
            f"The model {name!r} does not take these options: {listed(list(options))}."
        ) from error


def check_known(name: str) -> None:
    """Refuse a name that is none of ``MODELS``."""
    if name not in MODELS:
        raise ArgumentError(f"There is no model {name!r}; there are {listed(list(MODELS))}.")


def suggest(task: Task) -> str:
    """Name a model that suits the inputs of ``task``."""
    if isinstance(task.train, SparseRows):
        return "sparse-linear"
    if task.vocabulary is not None:
        return "text-linear" if task.bags is not None else "text-mean"
    if len(task.input_shape) == 3 and min(task.input_shape[1:]) >= 16:
        return "tanh-cnn" if task.input_shape[0] == 1 else "tanh-cnn-deep"
    return "additive" if task.columns else "mlp"
