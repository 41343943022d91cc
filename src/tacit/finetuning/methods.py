"""The ways to fine-tune, by name: what of the network each trains, in terms of the training methods."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from tacit.errors import ArgumentError
from tacit.experiments.config import Experiment, MethodConfig
from tacit.finetuning.network import LORA_RANK, MOBILENET, PUBLIC, anatomy, build_network, is_text
from tacit.finetuning.patterns import biases, vectors
from tacit.models.encoder import MINILM

METHODS = ("sparta", "full", "last-layer", "bitfit", "random-rows", "magnitude-rows", "lora", "tp-topk")
FIXED = ("full", "last-layer", "bitfit", "lora")
ACTIVE_RATIO = 0.1
EPOCHS = 5.0
CHUNK_SIZE = 64


def completed(experiment: Experiment) -> Experiment:
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


def resolved(experiment: Experiment, outputs: int) -> Experiment:
    """``experiment`` with a training method in place of a way to fine-tune, and every pattern of names decided.

    ``full`` trains all that is not frozen, ``last-layer`` the head, ``bitfit`` head and biases, ``lora`` head and
    low-rank corrections. The others choose among the weights; head, biases and norms are always active, or the head and
    what ``always_active`` names.
    """
    method, model = experiment.method, experiment.model
    if method.name not in METHODS:
        raise ArgumentError(
            f"There is no way to fine-tune called {method.name!r}; there are {', '.join(METHODS)}."
        )
    if method.name == "lora":
        model = replace(model, lora_rank=LORA_RANK if model.lora_rank is None else model.lora_rank)
    elif model.lora_rank is not None or model.lora_layers is not None:
        raise ArgumentError("--lora-rank and --lora-layers are for the method lora.")
    if method.name in FIXED and (method.active_ratio is not None or method.rows is not None):
        chosen = ", ".join(other for other in METHODS if other not in FIXED)
        raise ArgumentError(
            f"{method.name} makes no choice of rows; --active-ratio and --rows are for {chosen}."
        )
    network = build_network(model, outputs, experiment.data.data_dir)
    return replace(experiment, model=model, method=_method(method, network, anatomy(model).head))


def _method(method: MethodConfig, network: nn.Module, head: tuple[str, ...]) -> MethodConfig:
    name = method.name
    if name in ("full", "lora"):
        return replace(method, name="dp-sgd")
    if name == "last-layer":
        return replace(method, name="only", active=head)
    if name == "bitfit":
        return replace(method, name="only", active=_joined(head, biases(network)))
    asked = vectors(network) if method.always_active is None else method.always_active
    always = _joined(head, asked)
    ratio = ACTIVE_RATIO if method.active_ratio is None and method.rows is None else method.active_ratio
    if name == "sparta":
        return replace(method, head=head, active_ratio=ratio, always_active=always)
    return replace(method, active_ratio=ratio, always_active=always)


def _joined(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for group in groups for pattern in group))
