"""Audit a run on one's own data: train again with canaries among the examples, and guess which were there.

A canary is an example that teaches nothing: each of its values is taken from another row, its label from
yet another. The data stays where it is; what is written down are counts and bounds. The bound is the
one-run bound: canaries pull at the same weights, so their scores depend on each other. On real models it
lies far below the claim, because other examples hide a canary as well as the noise does; a bound above the
claim is a broken promise all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate

from tacit.audit.bounds import LEAST_TRIALS, Claim, Trials
from tacit.audit.record import Finding, find
from tacit.errors import ArgumentError, check_count
from tacit.jobs.budget import cost_of_plan, reserve_for
from tacit.jobs.defaults import plan_of
from tacit.jobs.problem import Problem
from tacit.jobs.settings import Experiment
from tacit.jobs.setup import SCHEDULES, build_model, loss_of, optimizer_of
from tacit.losses import Loss
from tacit.plan import merge
from tacit.support import Support
from tacit.support.support import trainable_parameters
from tacit.training.trainer import Trainer


class WithCanaries(Dataset[Any]):
    """The examples of a data set and then the canaries, each with its weight: 1, or 0 for a canary that is out."""

    def __init__(self, dataset: Dataset[Any], canaries: list[Any], present: np.ndarray) -> None:
        self._dataset, self._canaries, self._present = dataset, canaries, present
        self._size = len(dataset)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._size + len(self._canaries)

    def __getitem__(self, place: int) -> tuple[Any, float]:
        if place < self._size:
            return self._dataset[place], 1.0
        canary = place - self._size
        return self._canaries[canary], float(self._present[canary])


def make_canaries(dataset: Dataset[Any], count: int, coins: np.random.Generator) -> list[Any]:
    """Examples of the right form that no row looks like: every value from a random row of the data."""
    size = len(dataset)  # type: ignore[arg-type]
    rows = [dataset[int(place)] for place in coins.integers(size, size=min(size, 2 * count))]
    leaves, form = pytree.tree_flatten(rows[0])
    columns = [
        torch.stack([torch.as_tensor(pytree.tree_leaves(row)[place]) for row in rows])
        for place in range(len(leaves))
    ]
    canaries = []
    for _ in range(count):
        mixed = []
        for column in columns:
            flat = column.reshape(len(rows), -1)
            picked = torch.from_numpy(coins.integers(len(rows), size=flat.shape[1]))
            mixed.append(flat.gather(0, picked[None])[0].reshape(column.shape[1:]))
        canaries.append(pytree.tree_unflatten(mixed, form))
    return canaries


def audit_data(
    experiment: Experiment, problem: Problem, *, canaries: int, confidence: float, seed: int | None = None
) -> Finding:
    """Train ``experiment`` again on its data with canaries, each of them in by a coin, and bound ε by guessing which.

    The plan is made again for as many more examples; where a unit is a group of examples, a canary is a unit of one.
    A canary's score is how far the released gradients
    point along its own gradient, summed over the steps, in standard deviations of the noise.
    """
    check_count("canaries", canaries, least=LEAST_TRIALS)
    coins = np.random.default_rng(seed)
    present = coins.random(canaries) < 0.5
    examples = make_canaries(problem.train, canaries, coins)
    units = problem.units
    plan = plan_of(experiment, problem.examples + canaries, grouped=units is not None)
    if not np.isfinite(plan.epsilon):
        raise ArgumentError("The run adds no noise and claims no privacy; there is nothing to audit.")
    paid = replace(experiment, training=replace(experiment.training, seed=seed))
    reserve_for(paid, [cost_of_plan(plan)], "audit", "in memory")
    loss, training = loss_of(problem.kind, experiment.model.name), experiment.training
    model = build_model(experiment, problem)
    trainer = Trainer(
        model,
        WithCanaries(problem.train, examples, present),
        lambda model, batch: loss(model, batch[0]) * batch[1].to(torch.float32),
        plan,
        optimizer=optimizer_of(training, plan),
        schedule=SCHEDULES[training.schedule or "constant"],
        chunk_size=training.chunk_size,
        seed=seed,
        units=None
        if units is None
        else [*units.tolist(), *range(int(units.max()) + 1, int(units.max()) + 1 + canaries)],
        rows_per_unit=experiment.data.rows_per_unit,
    )
    batch = default_collate(examples)
    generator = torch.Generator().manual_seed(int(coins.integers(2**62)))
    along, energy = torch.zeros(canaries), torch.zeros(canaries)
    for step in trainer.steps():
        released = step.released
        probe = {
            name: torch.randn(value.shape, generator=generator) for name, value in released.values.items()
        }
        found, spread = _along(model, loss, batch, (released.values, probe), released.support)
        along += found / released.noise_std**2
        energy += spread.square() / released.noise_std**2
    scores = (along / energy.clamp(min=1e-30).sqrt()).double().numpy()
    claim = Claim(merge(plan.spends()), plan.delta)
    return find("data", problem.name, Trials(scores, present), claim, confidence=confidence, sequential=False)


def _along(
    model: nn.Module, loss: Loss, batch: Any, directions: Sequence[Mapping[str, Tensor]], support: Support
) -> list[Tensor]:
    """The derivative of every canary's loss along each direction, given on the active coordinates.

    The gradient of the weighted sum of losses is linear in the weights, so its product with a direction, derived by
    the weights, holds the derivatives of all the losses at once.
    """
    parameters = trainable_parameters(model)
    losses = loss(model, batch)
    weights = torch.ones_like(losses, requires_grad=True)
    gradients = torch.autograd.grad(
        (weights * losses).sum(), list(parameters.values()), create_graph=True, allow_unused=True
    )
    found = []
    for values in directions:
        product = torch.zeros(())
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            if gradient is not None and name in values:
                product = product + (gradient * _full(name, parameter, values, support)).sum()
        (derivative,) = torch.autograd.grad(product, weights, retain_graph=True)
        found.append(torch.nan_to_num(derivative.float()))
    return found


def _full(name: str, parameter: Tensor, values: Mapping[str, Tensor], support: Support) -> Tensor:
    full = torch.zeros(parameter.shape, dtype=parameter.dtype)
    if name in values:
        support[name].scatter_(full, values[name].to(parameter.dtype))
    return full
