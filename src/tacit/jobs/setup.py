"""From a description and its data to a trainer; what the description leaves open is decided here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from tacit.data import resolve_as
from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError, check_non_negative, check_positive
from tacit.jobs.description import Experiment, MethodConfig, TrainingConfig
from tacit.jobs.held_out import measures, threshold_of
from tacit.jobs.problem import Problem
from tacit.losses import Loss, binary_cross_entropy, cross_entropy, squared_error
from tacit.models import build, suggest
from tacit.plan import Plan, make_plan
from tacit.training import schedules
from tacit.training.trainer import Trainer
from tacit.training.update import OptimizerFactory

LOSSES: dict[str, Loss] = {
    "binary": binary_cross_entropy,
    "multiclass": cross_entropy,
    "regression": squared_error,
}
SCHEDULES = {"constant": schedules.constant, "linear": schedules.linear, "cosine": schedules.cosine}


def complete(experiment: Experiment, problem: Problem) -> Experiment:
    """``experiment`` with nothing left open that has a default, given the public facts of the data."""
    examples = problem.examples
    privacy, training = experiment.privacy, experiment.training
    images = problem.task is not None and len(problem.task.input_shape) == 3
    return replace(
        experiment,
        model=replace(experiment.model, name=experiment.model.name or _model_name(problem)),
        method=complete_method(experiment.method),
        privacy=replace(privacy, delta=min(1e-5, 0.1 / examples) if privacy.delta is None else privacy.delta),
        training=replace(
            training,
            batch_size=default_batch_size(examples) if training.batch_size is None else training.batch_size,
            epochs=(20.0 if images else 40.0) if training.epochs is None else training.epochs,
            learning_rate=_learning_rate(training),
        ),
    )


def complete_method(method: MethodConfig) -> MethodConfig:
    """TP-TopK without an active ratio chooses it itself, and then resets what it leaves silent."""
    if method.name != "tp-topk" or method.active_ratio is not None:
        return method
    return replace(method, active_ratio="auto", reset=True if method.reset is None else method.reset)


def default_batch_size(examples: int) -> int:
    """The power of two nearest to 8 √n, and at most half of the examples."""
    return int(max(1, min(2 ** round(math.log2(8 * math.sqrt(examples))), examples // 2)))


def _learning_rate(training: TrainingConfig) -> float:
    if training.learning_rate is not None:
        return check_positive("learning_rate", training.learning_rate)
    return 1.0 if training.optimizer == "sgd" else 0.01


def _model_name(problem: Problem) -> str:
    if problem.task is None:
        raise ArgumentError(
            f"The dataset {problem.name!r} needs a model of its own: say --model with a module:object."
        )
    vector = problem.task.vocabulary is None and len(problem.task.input_shape) == 1
    return "logistic" if vector else suggest(problem.task)


def plan_of(experiment: Experiment, examples: int) -> Plan:
    """The plan of a complete experiment."""
    privacy, training = experiment.privacy, experiment.training
    if privacy.delta is None or training.batch_size is None or training.epochs is None:
        raise ArgumentError("The experiment is not complete: delta, batch_size and epochs are needed.")
    return make_plan(
        experiment.method.name,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        examples=examples,
        batch_size=training.batch_size,
        epochs=training.epochs,
        clip_norm=training.clip_norm,
        accountant=privacy.accountant,
        **experiment.method.options,  # type: ignore[arg-type]
    )


def build_model(experiment: Experiment, problem: Problem) -> nn.Module:
    """A fresh model by name or import path; with a seed its initial weights are the same every time."""
    config = experiment.model
    assert config.name is not None
    if experiment.training.seed is not None:
        torch.manual_seed(experiment.training.seed)
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
    model = build(config.name, problem.task, **config.options)
    if problem.kind == "binary" and experiment.data.prevalence is not None:
        _start_at(model, threshold_of(experiment.data.prevalence))
    return model


def _start_at(model: nn.Module, logit: float) -> None:
    """Let the last layer start at ``logit``: an untrained model predicts the prevalence."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.bias.fill_(logit)


def build_trainer(
    experiment: Experiment,
    problem: Problem,
    plan: Plan,
    run_dir: Path | None = None,
    ranks: Ranks | None = None,
    witness: Path | None = None,
) -> Trainer:
    """The trainer of a complete experiment."""
    training = experiment.training
    return Trainer(
        build_model(experiment, problem),
        problem.train,
        LOSSES[problem.kind],
        plan,
        optimizer=optimizer_of(training),
        schedule=SCHEDULES[training.schedule],
        run_dir=run_dir,
        held_out=problem.held_out,
        metrics=measures(problem.kind, experiment.data.prevalence),
        average=training.average,
        chunk_size=training.chunk_size,
        isolation=training.isolation,
        seed=training.seed,
        not_covered=tuple(dict.fromkeys(problem.not_covered)),
        witness=witness,
        ranks=ranks,
    )


def optimizer_of(training: TrainingConfig) -> OptimizerFactory:
    """What makes the optimizer that ``training`` describes."""
    assert training.learning_rate is not None
    rate = training.learning_rate
    check_non_negative("momentum", training.momentum)
    check_non_negative("weight_decay", training.weight_decay)
    if training.optimizer == "adam":
        if training.momentum:
            raise ArgumentError("momentum is for sgd; adam keeps moments of its own.")
        return lambda named: torch.optim.Adam(named, lr=rate, weight_decay=training.weight_decay)
    return lambda named: torch.optim.SGD(
        named, lr=rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
