"""What the description of a job leaves open, decided: paths, data, and every setting that has a default."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tacit.data import LOADERS, Schema, Task
from tacit.data.sources import DATA_DIR_VARIABLE
from tacit.data.table_file import Table
from tacit.errors import ArgumentError, check_positive
from tacit.jobs.defaults import (
    adaptive_threshold,
    additive_detail,
    additive_training,
    default_batch_size,
    default_delta,
    head_training,
    text_training,
    with_active_ratio,
    worth_centring,
    worth_measuring,
)
from tacit.jobs.problem import Problem, load_problem
from tacit.jobs.settings import Experiment, MethodConfig, TrainingConfig
from tacit.models import suggest
from tacit.models.registry import check_known
from tacit.plan.accountants import RELATION


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """``experiment`` with absolute paths, so that a run can be resumed from any directory."""
    data, model = experiment.data, experiment.model
    if data.source in LOADERS:
        named = data.data_dir or os.environ.get(DATA_DIR_VARIABLE)
        data = replace(data, data_dir=str(Path(named).absolute()) if named else None)
    else:
        if Path(data.source).is_dir():
            data = replace(data, unit=_absolute(data.unit))
        data = replace(data, source=_absolute(data.source) or "")
    data = replace(
        data,
        tokenizer=_absolute(data.tokenizer, holding="config.json"),
        test=_absolute(data.test),
        words=_absolute(data.words),
    )
    name = _absolute(model.name, holding="config.json")
    return replace(experiment, data=data, model=replace(model, name=name, weights=_absolute(model.weights)))


def _absolute(name: str | None, holding: str = "") -> str | None:
    return str(Path(name).absolute()) if name and (Path(name) / holding).exists() else name


def with_defaults(experiment: Experiment, problem: Problem) -> Experiment:
    """``experiment`` with nothing left open that has a default, given the public facts of the data."""
    examples = problem.examples
    privacy, training = experiment.privacy, experiment.training
    task, method = problem.task, experiment.method
    model = experiment.model.name or _model_name(problem)
    features = experiment.data.features is not None
    if features and experiment.model.name is None and task is not None and len(task.input_shape) == 1:
        model = _layer_on_features(method, examples, task.input_shape[0], privacy.epsilon)
    if model == "additive":
        if task is not None:
            columns = max(1, task.columns)
            if experiment.model.detail is None:
                detail = additive_detail(examples, columns, privacy.epsilon)
                experiment = replace(experiment, model=replace(experiment.model, detail=detail))
            training = additive_training(training, task.kind, examples, columns, privacy.epsilon)
        method = method if method.chosen else method.changed("dp-sgd")
    if features and model in ("logistic", "unit-linear", "centred-linear"):
        if not method.chosen:
            method = method.changed("centred" if model == "centred-linear" else "dp-sgd")
        training = head_training(training, examples, privacy.epsilon)
    if model in ("text-linear", "text-embedding", "sparse-linear"):
        method = method if method.chosen else method.changed("dp-sgd")
        adaptive = method.name == "adafest"
        training = text_training(training, examples, privacy.epsilon, adaptive=adaptive)
        if adaptive and method.threshold is None and task is not None and task.vocabulary is not None:
            assert training.batch_size is not None
            method = method.changed(threshold=adaptive_threshold(task.vocabulary, training.batch_size))
    data = experiment.data
    if problem.table is not None and data.statistics is None:
        worth = (
            model == "additive"
            and privacy.relation == RELATION
            and worth_measuring(examples, len(problem.table.used), privacy.epsilon)
        )
        data = replace(data, statistics="private" if worth else "rows")
    images = task is not None and len(task.input_shape) == 3
    return replace(
        experiment,
        data=data,
        model=replace(experiment.model, name=model),
        method=with_active_ratio(method),
        privacy=replace(privacy, delta=default_delta(examples) if privacy.delta is None else privacy.delta),
        training=replace(
            training,
            batch_size=default_batch_size(examples) if training.batch_size is None else training.batch_size,
            epochs=(20.0 if images else 40.0) if training.epochs is None else training.epochs,
            clip_norm=1.0 if training.clip_norm is None else training.clip_norm,
            learning_rate=_learning_rate(training),
            momentum=training.momentum or 0.0,
            schedule=training.schedule or "constant",
        ),
    )


def _layer_on_features(method: MethodConfig, examples: int, inputs: int, epsilon: float) -> str:
    """The linear layer that suits a method; where none was chosen, with a centre if it is worth learning."""
    if method.chosen:
        return "centred-linear" if method.name == "centred" else "unit-linear"
    return "centred-linear" if worth_centring(examples, inputs, epsilon) else "unit-linear"


def _learning_rate(training: TrainingConfig) -> float:
    if training.learning_rate is not None:
        return check_positive("learning_rate", training.learning_rate)
    return 1.0 if training.optimizer == "sgd" else 0.01


def _model_name(problem: Problem) -> str:
    if problem.task is None:
        raise ArgumentError(
            f"The dataset {problem.name!r} needs its own model: say --model with a module:object."
        )
    vector = problem.task.vocabulary is None and len(problem.task.input_shape) == 1
    return "logistic" if vector and not problem.task.columns else suggest(problem.task)


def check_model(experiment: Experiment) -> None:
    """Refuse a model that does not exist before features are computed, which takes minutes."""
    name = experiment.model.name
    if experiment.data.features is not None and name is not None and ":" not in name:
        check_known(name)


def load_data(
    experiment: Experiment,
    schema: Schema | None = None,
    table: Table | Task | None = None,
    *,
    leave_open: bool = False,
    features_later: bool = False,
) -> Problem:
    """The data of an experiment, or ``table`` in their place; with a frozen prefix, what its blocks make of them.

    With ``leave_open`` a table whose columns could be measured is not encoded yet; with ``features_later`` the features
    of images are not computed yet.
    """
    leave_open = leave_open and experiment.data.statistics != "rows"
    problem = load_problem(
        experiment.data, schema, table, leave_open=leave_open, features_later=features_later
    )
    if not experiment.model.frozen_blocks:
        return problem
    from tacit.jobs.finetuning import with_frozen_prefix

    return with_frozen_prefix(experiment, problem)


def settled(experiment: Experiment, problem: Problem) -> Problem:
    """``problem``, encoded unless its columns are to be measured first."""
    return problem if experiment.data.statistics == "private" else problem.encoded()


def rounds_of(problem: Problem) -> int:
    """How many rounds of counting measure the columns of a problem that is still open."""
    return 0 if problem.table is None else problem.table.rounds
