"""Which tables get lazy noise, and when that is refused: before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError
from tacit.plan import Plan
from tacit.plan.sources import All
from tacit.raw.row_tables import embedding_tables
from tacit.release.lazy_noise import LazyTable
from tacit.release.noise import Noise
from tacit.support import Kind, Support
from tacit.training.update import ActiveUpdate

NOT_COVERED = (
    "how long steps take and how much memory they use: with lazy noise both depend on which rows of the embedding "
    "tables the examples touch"
)
"""What a certificate says about a run with lazy noise."""


def lazy_tables(
    model: nn.Module, noise: Noise, update: Callable[[], ActiveUpdate], ranks: Ranks
) -> dict[str, LazyTable]:
    """The embedding tables of a model, with lazy noise. ``update`` is asked for the optimizer when there is one."""
    if ranks.size > 1:
        raise ArgumentError("Lazy noise is for one process; train on one rank, or without lazy_noise.")
    found = embedding_tables(model)
    if not found:
        raise ArgumentError(
            "lazy_noise is for embedding tables (nn.Embedding, nn.EmbeddingBag), and the model trains none; leave it "
            "out."
        )
    for name, table in found.items():
        for path, module in model.named_modules():
            own = any(p is table for p in module.parameters(recurse=False))
            if own and not isinstance(module, nn.Embedding | nn.EmbeddingBag):
                raise ArgumentError(
                    f"The table {name!r} is also a parameter of {path} ({type(module).__name__}), which reads all its "
                    "rows, so every step needs all their noise; untie the two, or leave lazy_noise out."
                )
    return {
        name: LazyTable(name, table, noise, lambda p=table: plain_rate(update().optimizer, p))  # type: ignore[misc]
        for name, table in found.items()
    }


def plain_rate(optimizer: Optimizer, table: nn.Parameter) -> float:
    """The learning rate of a table that plain SGD moves; every other optimizer is refused."""
    group = next(group for group in optimizer.param_groups if any(p is table for p in group["params"]))
    name = type(optimizer).__name__
    options = [option for option in ("momentum", "weight_decay", "maximize") if group.get(option)]
    if type(optimizer) is not torch.optim.SGD or options:
        wrong = f"{name} with {' and '.join(options)}" if options else name
        raise ArgumentError(
            "Lazy noise needs torch.optim.SGD without momentum, weight decay and maximize for the embedding tables: "
            f"then the noise that a row is owed is one sum; {wrong} makes something else of it. Change the optimizer, "
            "or leave lazy_noise out."
        )
    return float(group["lr"])


def check_support(tables: Mapping[str, LazyTable], support: Support) -> None:
    """Refuse a support on which some rows of a table do not move."""
    for name in tables:
        if support[name].kind is not Kind.ALL or support[name].weights is not None:
            raise ArgumentError(
                f"Lazy noise is for tables that are active as a whole, which {name!r} is not; leave lazy_noise out."
            )


def check_plan(plan: Plan, average: float | None) -> None:
    """Refuse a plan that needs all released values in every step."""
    for phase in plan.phases[plan.counting :]:
        if not isinstance(phase.support, All) or phase.score is not None or not phase.updates:
            raise ArgumentError(
                f"Phase {phase.name!r} chooses or scores coordinates, for which it needs the noise of all rows in "
                "every step; lazy_noise is for methods that train all coordinates (dp-sgd)."
            )
    if average is not None:
        raise ArgumentError(
            "An average of the weights needs the noise of all rows in every step; leave out average, or lazy_noise."
        )
