"""A frozen beginning of a network, computed once for every example.

Its weights are public and never change, so what it makes of an example depends on that example alone: training on its
outputs is the same mechanism as training the whole network, at the cost of the blocks that are trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit.errors import ArgumentError
from tacit.experiments.config import Experiment
from tacit.experiments.problem import Problem
from tacit.finetuning.network import build_network
from tacit.models import MobileNetV2
from tacit.models.encoder import TextEncoder

_CHUNK = 128


def begun(experiment: Experiment, problem: Problem) -> Problem:
    """``problem`` with what the frozen blocks make of each input in place of the input."""
    config = experiment.model
    if not config.frozen_blocks:
        return problem
    if problem.task is None:
        raise ArgumentError(
            "A frozen beginning needs a task that states its shapes; leave frozen_blocks out."
        )
    network = build_network(
        replace(config, lora_rank=None, lora_layers=None), problem.task.outputs, experiment.data.data_dir
    )
    assert isinstance(network, MobileNetV2 | TextEncoder)
    train = _computed(network, config.frozen_blocks, problem.train)
    held_out = _computed(network, config.frozen_blocks, problem.task.held_out)
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
