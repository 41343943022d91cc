"""From a complete description and its data to a model and a trainer."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.data import resolve_as
from tacit.data.task import Kind, without_rows
from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError, check_non_negative
from tacit.jobs.held_out import held_out_weights, measures, threshold_of, warnings_to_share
from tacit.jobs.problem import Problem
from tacit.jobs.settings import Experiment, TrainingConfig
from tacit.losses import (
    Loss,
    binary_cross_entropy,
    cross_entropy,
    huber_error,
    next_token,
    squared_error,
    with_centre,
)
from tacit.models import build
from tacit.models.additive import Additive
from tacit.models.networks import EmbeddedWords, LinearWords, UnitLinear
from tacit.plan import Named, Phase, Plan
from tacit.plan.methods import CENTRE, Centred
from tacit.training import schedules
from tacit.training.open_run import OpenRun
from tacit.training.trainer import Trainer
from tacit.training.update import OptimizerFactory

LOSSES: dict[str, Loss] = {
    "binary": binary_cross_entropy,
    "multiclass": cross_entropy,
    "regression": squared_error,
    "generate": next_token,
}
_CENTRE_LEFT = 0.05
"""The part of the way to the middle of the inputs that the steps of the centre leave."""
SCHEDULES = {"constant": schedules.constant, "linear": schedules.linear, "cosine": schedules.cosine}


def loss_of(kind: Kind, model: str | None) -> Loss:
    """The loss of a kind of task. The additive model's grows with errors in a straight line, so that none rules."""
    if model == "centred-linear":
        return with_centre(LOSSES[kind])
    return huber_error if kind == "regression" and model == "additive" else LOSSES[kind]


def build_model(experiment: Experiment, problem: Problem) -> nn.Module:
    """A fresh model by name or import path; with a seed its initial weights are the same every time."""
    config = experiment.model
    assert config.name is not None
    if experiment.training.seed is not None:
        torch.manual_seed(experiment.training.seed)
    if problem.kind == "generate":
        from tacit.jobs.language import build_language_model  # transformers takes seconds to load

        return build_language_model(experiment)
    if config.weights is not None:
        from tacit.models.pretrained import build_network  # transformers takes seconds to load

        if problem.task is None:
            raise ArgumentError(f"The pretrained {config.name!r} needs a task that states its classes.")
        return build_network(config, problem.task.outputs, experiment.data.data_dir)
    if ":" in config.name:
        if config.options:
            raise ArgumentError(
                f"{', '.join(config.options)} are for built-in models; set them in {config.name!r} itself."
            )
        return resolve_as(config.name, nn.Module)
    if problem.task is None:
        raise ArgumentError(
            f"The model {config.name!r} needs a task that states its shapes; give a module:object instead."
        )
    if (config.name == "centred-linear") != (experiment.method.name == Centred.name):
        raise ArgumentError(
            "The model centred-linear and the method centred need each other; give both or neither."
        )
    model = build(config.name, problem.task, **config.options)
    start = _first_answers(experiment, problem)
    if start is not None:
        _start_at(model, start)
    return model


def prevalence_of(experiment: Experiment, problem: Problem) -> float | None:
    """The share of positives, publicly known or measured; ``None`` if it is neither or there are not two classes."""
    if problem.kind != "binary":
        return None
    if experiment.data.prevalence is not None:
        return experiment.data.prevalence
    shares = () if problem.schema is None else problem.schema.target.shares
    return shares[1] if shares else None


def _first_answers(experiment: Experiment, problem: Problem) -> list[float] | None:
    """What an untrained model should answer: the shares of the classes, or the middle of the target."""
    prevalence = prevalence_of(experiment, problem)
    if prevalence is not None:
        return [threshold_of(prevalence)]
    target = None if problem.schema is None else problem.schema.target
    if target is None or experiment.model.name != "additive":
        return None
    if target.shares:
        return [math.log(share) for share in target.shares]
    if target.typical is not None:
        low, high = target.range
        return [2 * (target.typical - low) / (high - low) - 1]
    return None


def _start_at(model: nn.Module, answers: list[float]) -> None:
    """Let the last layer start at ``answers``: an untrained model predicts what is known without it."""
    if isinstance(model, Additive | LinearWords | EmbeddedWords | UnitLinear):
        model.start_at(*answers)
        return
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.bias.copy_(torch.tensor(answers))


def build_trainer(
    experiment: Experiment,
    problem: Problem,
    plan: Plan,
    run_dir: Path | None = None,
    ranks: Ranks | None = None,
    witness: Path | None = None,
    begun: OpenRun | None = None,
) -> Trainer:
    """The trainer of a complete experiment; ``begun`` is a run that has begun with counts of the columns."""
    training = experiment.training
    return Trainer(
        build_model(experiment, problem),
        problem.train,
        loss_of(problem.kind, experiment.model.name),
        plan,
        optimizer=optimizer_of(training, plan),
        schedule=SCHEDULES[training.schedule or "constant"],
        run_dir=run_dir,
        held_out=problem.held_out,
        metrics=measures(problem.kind, prevalence_of(experiment, problem), held_out_weights(problem)),
        average=training.average,
        chunk_size=training.chunk_size,
        isolation=training.isolation,
        lazy_noise=training.lazy_noise,
        seed=training.seed,
        units=problem.units,
        rows_per_unit=experiment.data.rows_per_unit,
        unit=problem.task.unit if problem.task is not None and problem.units is not None else None,
        not_covered=tuple(dict.fromkeys(problem.not_covered)),
        witness=witness,
        ranks=ranks,
        begun=begun,
        warn=lambda measured: without_rows(warnings_to_share(problem, measured, plan.epsilon)),
    )


def optimizer_of(training: TrainingConfig, plan: Plan | None = None) -> OptimizerFactory:
    """What makes the optimizer that ``training`` describes; the centre that a ``plan`` learns has steps of its own."""
    assert training.learning_rate is not None
    rate = training.learning_rate
    momentum = check_non_negative("momentum", training.momentum or 0.0)
    check_non_negative("weight_decay", training.weight_decay)
    phases = () if plan is None else plan.phases
    centre = next((phase for phase in phases if phase.support == Named((CENTRE,))), None)
    if training.optimizer == "adam":
        if momentum:
            raise ArgumentError("momentum is for sgd; adam has its own moments.")
        if centre is not None:
            raise ArgumentError("The method centred learns the centre by plain steps; use sgd.")
        return lambda named: torch.optim.Adam(named, lr=rate, weight_decay=training.weight_decay)
    if centre is not None:
        return lambda named: _with_centre(named, training, centre)
    return lambda named: torch.optim.SGD(
        named, lr=rate, momentum=momentum, weight_decay=training.weight_decay
    )


def _with_centre(
    named: list[tuple[str, nn.Parameter]], training: TrainingConfig, phase: Phase
) -> torch.optim.SGD:
    """Two groups in every phase, empty or not: the layer, and the centre, whose gradients are all as long as allowed.

    Every step goes the same part of the way to the middle, so that all steps together leave ``_CENTRE_LEFT`` of it.
    """
    step = (1 - _CENTRE_LEFT ** (1 / phase.steps)) / phase.clip_norm
    centre = [parameter for name, parameter in named if fnmatchcase(name, CENTRE)]
    others = [parameter for name, parameter in named if not fnmatchcase(name, CENTRE)]
    groups: list[dict[str, Any]] = [
        {"params": others, "momentum": training.momentum or 0.0, "weight_decay": training.weight_decay},
        {"params": centre, "lr": step},
    ]
    return torch.optim.SGD(groups, lr=training.learning_rate or 1.0)
