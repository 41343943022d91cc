"""What a description leaves open, decided from public numbers, and the plan that follows. Needs no PyTorch."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from tacit.errors import ArgumentError
from tacit.jobs.settings import Experiment, MethodConfig, TrainingConfig
from tacit.plan import Plan, make_plan

if TYPE_CHECKING:
    from tacit.data.task import Kind


def default_batch_size(examples: int) -> int:
    """The power of two nearest to 8 √n, and at most half of the examples."""
    return int(max(1, min(2 ** round(math.log2(8 * math.sqrt(examples))), examples // 2)))


def default_delta(examples: int) -> float:
    """1e-5, or a tenth of 1 / examples where that is smaller."""
    return min(1e-5, 0.1 / examples)


ADDITIVE_STEPS = 400
"""Steps of the additive model: with batches of a sixteenth of the rows, 25 passes over them."""
_MOMENTUM = 0.9
_TIMES = {"binary": (0.5, 0.8, 1000.0), "multiclass": (0.5, 0.8, 2000.0), "regression": (0.018, 1.15, 400.0)}
_HIGHEST_RATE = {"binary": 16.0, "multiclass": 16.0, "regression": 2.0}


WIDE = 81.0
"""Columns per (ε · rows / columns)^0.4 from which on training is shorter: the noise of all weights together would be
longer than what they learn. By the rule's length, its norm is that of 2.2 (ε · rows / columns)^-0.2 on every column."""


def additive_training(
    training: TrainingConfig, kind: Kind, examples: int, columns: int, epsilon: float
) -> TrainingConfig:
    """What ``training`` leaves open for the additive model, from public numbers.

    Noise adds up with the length of training, that is rate times steps, and so does what is learned; how long is best
    follows a power of ε times rows per column, which was fitted on some tables and judged on others (see
    docs/guide/tables.md). The highest rates are below those at which a row of norm 1 could make training diverge.
    """
    batch = training.batch_size
    if batch is None:
        batch = max(1, min(examples // 2, max(512, min(4096, examples // 16))))
    epochs = ADDITIVE_STEPS * batch / examples if training.epochs is None else training.epochs
    momentum = training.momentum
    if momentum is None:
        momentum = 0.0 if training.optimizer == "adam" else _MOMENTUM
    rate = training.learning_rate
    if rate is None and training.optimizer == "adam":
        rate = 0.01
    if rate is None:
        factor, power, longest = _TIMES[kind]
        paid = (
            epsilon if 1e-9 < epsilon < 100 else (100.0 if epsilon >= 100 else 1e-9)
        )  # the plan refuses the rest
        length = min(longest, factor * (paid * examples / columns) ** power)
        if kind != "regression":
            length *= min(1.0, WIDE * (paid * examples / columns) ** 0.4 / columns)
        steps = max(1.0, epochs * examples / batch)
        rate = float(f"{min(_HIGHEST_RATE[kind], length * (columns + 1) * 2 * (1 - momentum) / steps):.3g}")
    return replace(
        training,
        batch_size=batch,
        epochs=epochs,
        momentum=momentum,
        schedule=training.schedule or "linear",
        learning_rate=rate,
    )


HEAD_STEPS = 300
"""Steps of a last layer on inputs that are computed once, so that steps cost little."""
_REACH, _REACH_POWER, _MOST_SIGNAL = 0.6, 0.7, 5e5


def head_training(
    training: TrainingConfig, examples: int, epsilon: float, *, length: float = 1.0
) -> TrainingConfig:
    """What ``training`` leaves open for a last layer on fixed inputs of about this ``length``, from public numbers.

    Gradients are clipped at less than a tenth of an input's length: almost every image then counts alike, and how far
    the layer moves is decided by rate, clip norm and steps. How far is best grows with what noise leaves of the images,
    that is with ε times their number. The rule was fitted on some folders of
    images and judged on others (see docs/guide/finetuning.md).
    """
    batch = default_batch_size(examples) if training.batch_size is None else training.batch_size
    epochs = HEAD_STEPS * batch / examples if training.epochs is None else training.epochs
    clip = length / 10 if training.clip_norm is None else training.clip_norm
    momentum = training.momentum
    if momentum is None:
        momentum = 0.0 if training.optimizer == "adam" else _MOMENTUM
    rate = training.learning_rate
    if rate is None and training.optimizer != "adam":
        signal = min(_MOST_SIGNAL, max(1.0, epsilon * examples)) / 4000
        least = clip[0] if isinstance(clip, tuple) else clip
        steps = max(1.0, epochs * examples / batch)
        far = _REACH * signal**_REACH_POWER * HEAD_STEPS / steps * (1 - momentum) / (1 - _MOMENTUM)
        rate = float(f"{far / (least * length):.3g}")
    return replace(
        training,
        batch_size=batch,
        epochs=epochs,
        clip_norm=clip,
        momentum=momentum,
        schedule=training.schedule or "linear",
        learning_rate=rate,
    )


_CENTRE_NOISE = 280.0
"""Ten times 28: at a tenth of ε the noise of a centre is about 28 √inputs / (ε · examples) long."""


def worth_centring(examples: int, inputs: int, epsilon: float) -> bool:
    """Whether the centre of vectors of unit length can be learned with noise of a tenth of their length."""
    return epsilon * examples >= _CENTRE_NOISE * math.sqrt(inputs)


TEXT_STEPS = 300
"""Steps of a linear model of bags of words."""
_TEXT_CLIP = 0.1
_TEXT_REACH, _TEXT_POWER, _TEXT_SIGNAL, _MOST_TEXT_REACH = 45.0, 0.9, 24_000.0, 1000.0


ADAPTIVE_TIMES = 4
"""How many times larger batches are, and fewer steps, where every step chooses its rows.

What a row's count gains on its noise grows with the root of that.
"""
_CHANCE_ROWS, _MOST_BY_CHANCE = 20, 0.31


def adaptive_threshold(vocabulary: int, batch: int) -> float:
    """What a count must reach, in deviations of its noise: rows chosen by chance are 20 per text of a batch.

    They cost time and noise that hardly matters; a higher threshold costs what rare words could show. At most 31 % of
    all rows are chosen by chance, at the threshold 0.5. Fitted on SST-2 and judged on IMDB (see docs/results/texts.md).
    """
    share = min(_MOST_BY_CHANCE, _CHANCE_ROWS * batch / max(1, vocabulary))
    return float(f"{NormalDist().inv_cdf(1 - share):.2g}")


def text_training(
    training: TrainingConfig, examples: int, epsilon: float, *, adaptive: bool = False
) -> TrainingConfig:
    """What ``training`` leaves open for a linear model of bags of words, from public numbers.

    As for a last layer, gradients are clipped at a tenth of an input's length, so that almost every text counts alike,
    and how far a step goes follows ε times the number of texts. The rule was fitted on SST-2, with different numbers of
    its sentences, and judged on IMDB (see docs/results/texts.md). Without momentum, so that lazy noise and rows chosen
    in every step are possible. If steps choose rows (``adaptive``), there are fewer of them, on larger batches.
    """
    times = ADAPTIVE_TIMES if adaptive and training.batch_size is None else 1
    batch = training.batch_size
    if batch is None:
        batch = max(1, min(times * default_batch_size(examples), examples // 2))
    epochs = TEXT_STEPS / times * batch / examples if training.epochs is None else training.epochs
    clip = _TEXT_CLIP if training.clip_norm is None else training.clip_norm
    rate = training.learning_rate
    if rate is None and training.optimizer != "adam":
        signal = min(epsilon, 1e6) * examples / _TEXT_SIGNAL
        least = clip[0] if isinstance(clip, tuple) else clip
        steps = max(1.0, epochs * examples / batch)
        reach = min(_MOST_TEXT_REACH, _TEXT_REACH * signal**_TEXT_POWER) * TEXT_STEPS / steps
        rate = float(f"{reach * (1 - (training.momentum or 0.0)) / least:.3g}")
    return replace(
        training,
        batch_size=batch,
        epochs=epochs,
        clip_norm=clip,
        schedule=training.schedule or "linear",
        learning_rate=rate,
    )


FULL_DETAIL = 20.0
"""ε · rows / columns² from which on the parts of a number have their full weight."""
_LEAST_DETAIL = 0.05


def additive_detail(examples: int, columns: int, epsilon: float) -> float:
    """How much weight the additive model gives to the parts of a number, from public numbers.

    Parts take weight from the lines. In a wide table most columns have little to show, and where few rows pay for each
    of them, what their parts could show drowns in noise.
    """
    detail = min(1.0, epsilon * examples / (FULL_DETAIL * columns**2))
    return float(f"{detail:.2g}") if detail >= _LEAST_DETAIL else 0.0


def with_active_ratio(method: MethodConfig) -> MethodConfig:
    """TP-TopK without an active ratio chooses it itself."""
    if method.name != "tp-topk" or method.active_ratio is not None:
        return method
    return method.changed(active_ratio="auto")


_FEW_ROWS, _FEW_IN_ALL = 10.0, 100.0


def too_few_rows(examples: int, columns: int, epsilon: float) -> list[str]:
    """A sentence where noise hides almost everything that rows could show; images and texts have no ``columns``."""
    if epsilon * examples < _FEW_ROWS * columns:
        return [
            f"{examples:,} training rows are few for {columns:,} columns at ε = {epsilon:g}: the noise hides almost "
            "everything they could show. Bring more rows, leave out columns, or do not rely on this model."
        ]
    if epsilon * examples < _FEW_IN_ALL:
        return [
            f"{examples:,} training examples are few at ε = {epsilon:g}: the noise hides almost everything they could "
            f"show. Bring at least {math.ceil(_FEW_IN_ALL / epsilon):,}, or do not rely on this model."
        ]
    return []


LEAST_TO_MEASURE = 800.0
"""Least ε · rows / √columns at which columns are measured by default: below, noise hides too much of their counts."""
MEASURING_SHARE = 0.2
"""The share of ε that measuring columns alone may cost. Training then has 2 to 3 % more noise than without it."""


TUNED_RATES = (1.0, 4.0)
"""What tuning tries, as factors on the learning rate that the rule or the user gives."""
TUNING_SHARE = 0.3
"""The share of ε that the comparison alone may cost."""


def worth_measuring(examples: int, columns: int, epsilon: float) -> bool:
    """Whether counts of the columns can tell more than their noise hides."""
    return math.isfinite(epsilon) and epsilon * examples >= LEAST_TO_MEASURE * math.sqrt(max(1, columns))


def plan_of(experiment: Experiment, examples: int, *, grouped: bool = False, rounds: int = 0) -> Plan:
    """The plan of a complete experiment; ``grouped`` says that ``examples`` counts units of several examples.

    ``rounds`` of counting the columns of a table come before training.
    """
    privacy, training = experiment.privacy, experiment.training
    if privacy.delta is None or training.batch_size is None or training.epochs is None:
        raise ArgumentError("The experiment is not complete: delta, batch_size and epochs are needed.")
    return make_plan(
        experiment.method.name,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        **({"units": examples} if grouped else {"examples": examples}),
        batch_size=training.batch_size,
        epochs=training.epochs,
        clip_norm=1.0 if training.clip_norm is None else training.clip_norm,
        accountant=privacy.accountant,
        relation=privacy.relation,
        counting=(rounds, MEASURING_SHARE) if rounds else None,
        tuning=(TUNED_RATES, TUNING_SHARE) if training.tune else None,
        **experiment.method.options,
    )
