"""Whole rounds of many clients in one process, vectorised over the clients of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError
from tacit.federated.dataset import FederatedData
from tacit.federated.local import flat_answers, sum_answers, two_stage_answers
from tacit.federated.models import Model
from tacit.federated.plan import LocalPlan
from tacit.federated.randomness import Uniforms

Floats = NDArray[np.float32]
Round = Callable[[NDArray[np.int64], Floats], NDArray[np.float64]]
Observer = Callable[[int, Floats], None]


@dataclass(frozen=True, eq=False)
class Simulated:
    """Weights after a simulated run, and the rounds and answers it took. Seeded noise: not for release."""

    weights: Floats
    rounds: int
    answers: int


def simulate(
    plan: LocalPlan,
    model: Model,
    clients: FederatedData,
    rng: np.random.Generator,
    observe: Observer | None = None,
) -> Simulated:
    """Train ``model``: each epoch visits all clients in a fresh random order, ``plan.batch`` at a time.

    The sum of a batch is divided by ``plan.batch``, a public number, also where the last batch is shorter.
    ``observe`` is called with the number of the round and the weights after it.
    """
    if model.d != plan.d:
        raise ArgumentError(f"The plan is for {plan.d} coordinates, the model has {model.d}.")
    weights = model.initial()
    update = _round(plan, len(clients), rng)
    rounds = 0
    for _ in range(plan.epochs):
        order = rng.permutation(len(clients))
        for start in range(0, len(order), plan.batch):
            batch = order[start : start + plan.batch]
            step = update(batch, model.gradients(weights, clients.x[batch], clients.y[batch]))
            weights = weights - (step / plan.batch).astype(np.float32)
            rounds += 1
            if observe is not None:
                observe(rounds, weights)
    return Simulated(weights, rounds, plan.epochs * len(clients))


def _round(plan: LocalPlan, clients: int, rng: Uniforms) -> Round:
    """Return the function from a batch and its gradients to batch size × the server's update."""
    rate = plan.learning_rate
    value = plan.value_perturbation()
    match plan.solution:
        case "two-stage":
            return _two_stage_round(plan, clients, rng)
        case "flat":
            count = plan.coordinates_sent

            def flat(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
                answers = flat_answers(value, gradients, count, rng)
                total = np.sum([sum_answers(a, plan.d) for a in answers], axis=0, dtype=np.float64)
                return np.asarray(rate * plan.d / count * total)

            return flat
        case "compressed":
            return _compressed_round(plan, rng)
    return lambda batch, gradients: rate * gradients.sum(axis=0, dtype=np.float64)


def _two_stage_round(plan: LocalPlan, clients: int, rng: Uniforms) -> Round:
    law, value = plan.selection(), plan.value_perturbation()
    # A client that answers once never looks at its residual again. Pages of zeros cost nothing until they
    # are written.
    kept = np.zeros((clients, plan.d), np.float32) if plan.epochs > 1 else None
    inside, outside = (plan.learning_rate, 1.0) if plan.scaled_accumulation else (1.0, plan.learning_rate)

    def two_stage(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
        scaled = gradients if inside == 1.0 else np.float32(inside) * gradients
        residual = None if kept is None else kept[batch]
        answers, left = two_stage_answers(law, value, scaled, residual, plan.momentum, rng)
        if kept is not None:
            kept[batch] = left
        return outside * sum_answers(answers, plan.d)

    return two_stage


def _compressed_round(plan: LocalPlan, rng: Uniforms) -> Round:
    q, value = plan.projected, plan.value_perturbation()
    seed = int(rng.integers(0, 2**62, 1)[0])
    projection = np.random.default_rng(seed).standard_normal((plan.d, q), dtype=np.float32) / np.sqrt(
        np.float32(q)
    )
    recovery = np.linalg.pinv(projection)

    def compressed(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
        (answers,) = flat_answers(value, gradients @ projection, 1, rng)
        return plan.learning_rate * (q * sum_answers(answers, q) @ recovery)

    return compressed
