"""What examples say about rows in place of their gradients: which ones they look up, and which ones they vote for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from tacit.raw.exact import full_precision
from tacit.raw.gradients import Embedding
from tacit.raw.gradients.embedding import lookups
from tacit.raw.instrumentation import Instrumentation
from tacit.raw.recorder import Recorder
from tacit.support import Support


def looked_up(
    recorder: Recorder,
    instrumentation: Instrumentation,
    clip_norm: float,
    tables: Collection[str] | None = None,
) -> tuple[dict[str, Embedding], Tensor]:
    """The tables in which rows were looked up, all or some, and what an example gives each row that it looks up.

    With n rows it is min(1, C/√n), so that all of them have norm C at most. Who is left out gives nothing: the rows in
    its place are those of another example.
    """
    found = {instrumentation.names[key]: lookups(use) for key, use in recorder.uses.items()}
    uses = {
        name: use for name, use in found.items() if use is not None and (tables is None or name in tables)
    }
    rows = sum((use.rows_per_example() for use in uses.values()), torch.zeros(()))
    given = (clip_norm / rows.sqrt()).clamp_(max=1.0)
    return uses, given if recorder.left_out is None else given.masked_fill_(recorder.left_out, 0.0)


def votes_of_each(
    recorder: Recorder, instrumentation: Instrumentation, support: Support, votes: int, clip_norm: float
) -> Iterator[tuple[str, Tensor]]:
    """Of every parameter, the sum of votes for the rows of the largest gradients of examples that worked alone.

    An example has at most n votes in all; each counts C/√n, so that they have norm C at most, whatever gradients are.
    """
    assert recorder.norms is not None
    vote = one_vote(support, votes, clip_norm)
    each = torch.eye(len(recorder.norms.square), dtype=torch.float64, device=recorder.norms.square.device)
    with torch.no_grad(), full_precision():
        for key in list(recorder.uses):
            use, name = recorder.uses.pop(key), instrumentation.names[key]
            part = torch.zeros(support[name].row_count, dtype=torch.float64, device=each.device)
            for one in each:
                best = use.weighted_row_norms(one, support[name]).topk(min(votes, len(part)))
                part[best.indices] += (best.values > 0).double() * vote
            yield name, part


def votes_of_one(
    loss: Tensor, parameters: Mapping[str, Tensor], support: Support, votes: int, clip_norm: float
) -> dict[str, Tensor]:
    """The same of the one example, or unit, that ``loss`` is of. Without a finite gradient it has no vote.

    The gradient of one example alone is what plain autograd gives, so nothing has to be watched. Among rows that are
    equal the first are voted for.
    """
    vote, found = one_vote(support, votes, clip_norm), _row_norms_of_one(loss, parameters, support)
    for name, norms in found.items():
        best = norms.sort(descending=True, stable=True).indices[:votes]
        found[name] = torch.zeros_like(norms).index_fill_(0, best, vote).mul_(norms > 0)
    return found


def module_votes_of_one(
    loss: Tensor,
    parameters: Mapping[str, Tensor],
    support: Support,
    modules: Mapping[str, list[str]],
    votes: int,
    clip_norm: float,
) -> dict[str, Tensor]:
    """The votes of one example, or unit, for the ``votes`` modules in which its gradient is longest.

    An example has m = min(``votes``, modules) votes at most; each counts C/√m and stands in the first row of the
    module's first parameter, all other rows are 0. A module without gradient gets none.
    """
    norms = _row_norms_of_one(loss, parameters, support)
    lengths = {
        module: math.hypot(*(float(norms[name].norm()) for name in names if name in norms))
        for module, names in modules.items()
    }
    longest = sorted(lengths, key=lambda module: -lengths[module])[:votes]
    vote, found = clip_norm / math.sqrt(min(votes, len(modules))), {}
    for module in longest:
        if lengths[module] > 0:
            first = modules[module][0]
            found[first] = torch.zeros(support[first].row_count, dtype=torch.float64, device=loss.device)
            found[first][0] = vote
    return found


def _row_norms_of_one(loss: Tensor, parameters: Mapping[str, Tensor], support: Support) -> dict[str, Tensor]:
    """The L2 norms of the rows of the gradient, of the parameters that it reaches; nothing if one is not finite."""
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    found = {}
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            rows = gradient.to_dense().reshape(support[name].row_count, -1)
            found[name] = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return found if found and bool(torch.cat(list(found.values())).isfinite().all()) else {}


def one_vote(support: Support, votes: int, clip_norm: float) -> float:
    """What a vote counts: C/√n, where n votes is the most that an example has."""
    return clip_norm / math.sqrt(sum(min(votes, block.row_count) for block in support.values() if block.size))


@contextmanager
def differentiable(parameters: Mapping[str, Tensor], support: Support) -> Iterator[dict[str, Tensor]]:
    """The active ones of ``parameters``; within this context they alone require gradients."""
    flags = {name: parameter.requires_grad for name, parameter in parameters.items()}
    active = [name for name, block in support.items() if block.size]
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in active)
        yield {name: parameters[name] for name in active}
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(flags[name])
