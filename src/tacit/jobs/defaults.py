"""What a description leaves open, decided from public numbers, and the plan that follows. Needs no PyTorch."""

from __future__ import annotations

import math

from tacit.errors import ArgumentError
from tacit.jobs.settings import Experiment, MethodConfig
from tacit.plan import Plan, make_plan


def default_batch_size(examples: int) -> int:
    """The power of two nearest to 8 √n, and at most half of the examples."""
    return int(max(1, min(2 ** round(math.log2(8 * math.sqrt(examples))), examples // 2)))


def default_delta(examples: int) -> float:
    """1e-5, or a tenth of 1 / examples where that is smaller."""
    return min(1e-5, 0.1 / examples)


def with_active_ratio(method: MethodConfig) -> MethodConfig:
    """TP-TopK without an active ratio chooses it itself, and then resets what it leaves inactive."""
    if method.name != "tp-topk" or method.active_ratio is not None:
        return method
    return method.changed(active_ratio="auto", reset=True if method.reset is None else method.reset)


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
        **experiment.method.options,
    )
