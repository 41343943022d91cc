"""Embedding tables that a release moves itself: which they are, and what is refused before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn
from torch.optim import Optimizer

from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError
from tacit.plan import Plan
from tacit.plan.sources import AdaptiveRows, All
from tacit.raw.row_tables import embedding_tables
from tacit.release.adaptive_rows import AdaptiveTable
from tacit.release.lazy_noise import LazyTable
from tacit.release.mechanism import Tables
from tacit.release.noise import Noise
from tacit.support import Kind, Support
from tacit.training.update import ActiveUpdate

NOT_COVERED = (
    "how long steps take and how much memory they use: both depend on which rows of the embedding tables the examples "
    "touch, because noise is drawn for those"
)
"""What a certificate says about a run with lazy noise, or with rows that every step chooses."""


def tables_of(
    model: nn.Module,
    noise: Noise,
    update: Callable[[], ActiveUpdate],
    ranks: Ranks,
    *,
    lazy: bool,
    adaptive: AdaptiveRows | None,
) -> Tables:
    """The embedding tables of a model that have lazy noise, or of which every step chooses rows; none otherwise.

    ``update`` is asked for the optimizer when there is one.
    """
    if lazy:
        return {
            name: LazyTable(name, table, noise, _rate(update, table, "Lazy noise"))
            for name, table in _looked_up(model, ranks, "Lazy noise").items()
        }
    if adaptive is None:
        return {}
    what = "A choice of rows in every step"
    return {
        name: AdaptiveTable(name, table, noise, _rate(update, table, what), adaptive.threshold)
        for name, table in _looked_up(model, ranks, what).items()
    }


def _rate(update: Callable[[], ActiveUpdate], table: nn.Parameter, what: str) -> Callable[[], float]:
    return lambda: plain_rate(update().optimizer, table, what)


def _looked_up(model: nn.Module, ranks: Ranks, what: str) -> dict[str, nn.Parameter]:
    """The embedding tables of a model, which nothing but lookups may read."""
    if ranks.size > 1:
        raise ArgumentError(f"{what} is for one process; train on one rank, or without it.")
    found = embedding_tables(model)
    if not found:
        raise ArgumentError(
            f"{what} is for embedding tables (nn.Embedding, nn.EmbeddingBag), and the model trains none; leave it out."
        )
    for name, table in found.items():
        for path, module in model.named_modules():
            own = any(p is table for p in module.parameters(recurse=False))
            if own and not isinstance(module, nn.Embedding | nn.EmbeddingBag):
                raise ArgumentError(
                    f"The table {name!r} is also a parameter of {path} ({type(module).__name__}), which reads all its "
                    f"rows in every step. {what} is for tables that are only looked up: untie the two, or leave it out."
                )
    return found


def plain_rate(optimizer: Optimizer, table: nn.Parameter, what: str) -> float:
    """The learning rate of a table that plain SGD moves; every other optimizer is refused."""
    group = next(group for group in optimizer.param_groups if any(p is table for p in group["params"]))
    name = type(optimizer).__name__
    options = [option for option in ("momentum", "weight_decay", "maximize") if group.get(option)]
    if type(optimizer) is not torch.optim.SGD or options:
        wrong = f"{name} with {' and '.join(options)}" if options else name
        raise ArgumentError(
            f"{what} needs torch.optim.SGD without momentum, weight decay and maximize for the embedding tables; "
            f"{wrong} moves rows that no example touches in other ways. Change the optimizer, or leave it out."
        )
    return float(group["lr"])


def check_rates(tables: Collection[str], model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that moves rows in other ways than plain SGD does."""
    for name in tables:
        plain_rate(optimizer, model.get_parameter(name), "A table that is read row by row")


def check_support(tables: Collection[str], support: Support) -> None:
    """Refuse a support on which some rows of a table do not move."""
    for name in tables:
        if support[name].kind is not Kind.ALL or support[name].weights is not None:
            raise ArgumentError(
                f"Lazy noise is for tables that are active as a whole, which {name!r} is not; leave lazy_noise out."
            )


def check_lazy_plan(plan: Plan, average: float | None) -> None:
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


def adaptive_source(plan: Plan) -> AdaptiveRows | None:
    """How a plan chooses rows in every step, if it does: then in all its steps and in one way."""
    phases = plan.phases[plan.counting :]
    found = [phase.support for phase in phases if isinstance(phase.support, AdaptiveRows)]
    if not found:
        return None
    if len(found) != len(phases) or len(set(found)) > 1:
        raise ArgumentError(
            "A plan that chooses rows in every step must do so in all its phases, in one way."
        )
    if any(phase.score is not None or not phase.updates for phase in phases):
        raise ArgumentError("A phase that chooses rows in every step trains them, and scores nothing.")
    return found[0]
