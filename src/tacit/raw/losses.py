"""Losses of several candidates for a model's weights, summed over examples that are clipped one by one.

An example adds the vector of its losses, one per candidate, without their mean, scaled to a norm of at most C. Where
examples are grouped, a unit adds one vector, of the mean losses of its examples. Losses come from an example alone:
each is computed as for a batch of one (``torch.func.vmap``). Vectors are cut to whole multiples of C / 2²⁰, towards
zero, so that none grows, and added up as whole numbers, so that the sum of the others does not depend on one by
rounding either. Who has no finite losses adds nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from tacit.errors import ModelError, check_positive
from tacit.losses import Loss
from tacit.raw.one_at_a_time import Singles
from tacit.raw.units import UnitBatch
from tacit.units import numbered

STEPS = 2**20
"""Into so many steps the clip norm is divided."""
ROUNDING = 2.0**-20
"""Share of the clip norm that covers the rounding of an example's norm."""
MOST_EXAMPLES = 2**31


def loss_vectors(
    model: nn.Module,
    loss: Loss,
    candidates: Sequence[Mapping[str, Tensor]],
    chunks: Iterable[Any],
    clip_norm: float,
) -> Tensor:
    """Σᵤ clip(ℓᵤ - mean(ℓᵤ), C) over the units of all chunks, one number per candidate, in double precision.

    A unit is one example, or the examples of a ``UnitBatch`` that share an id; all of them are in one chunk.
    """
    check_positive("clip_norm", clip_norm)
    exact = copy.deepcopy(model).double().eval()
    weights = {
        name: torch.stack([candidate[name].double() for candidate in candidates]) for name in candidates[0]
    }
    total = torch.zeros(len(candidates), dtype=torch.int64)
    with torch.no_grad():
        for chunk in chunks:
            for batch in chunk if isinstance(chunk, Singles) else (chunk,):
                total += _steps(_losses_of_units(exact, loss, weights, batch), clip_norm)
    return total.double() * (clip_norm / STEPS)


def _losses_of_units(model: nn.Module, loss: Loss, weights: Mapping[str, Tensor], batch: Any) -> Tensor:
    """A row per unit, a column per candidate."""
    if not isinstance(batch, UnitBatch):
        return _losses(model, loss, weights, batch)
    found = _losses(model, loss, weights, batch.batch).cpu()
    codes, count = numbered(batch.ids)
    if len(codes) != len(found):
        raise ModelError(
            "A batch has another number of examples than ids of units; collate must keep the examples of a batch, in "
            "their order."
        )
    units = torch.from_numpy(codes)
    sizes = torch.bincount(units, minlength=count)
    return found.new_zeros(count, found.shape[1]).index_add_(0, units, found) / sizes[:, None]


def _losses(model: nn.Module, loss: Loss, weights: Mapping[str, Tensor], batch: Any) -> Tensor:
    """A row per example, a column per candidate."""

    class Called(nn.Module):
        def __init__(self, own: dict[str, Tensor]) -> None:
            super().__init__()
            self.own = own

        def forward(self, *inputs: Any, **named: Any) -> Any:
            return functional_call(model, self.own, inputs, named)

    def of_one(own: dict[str, Tensor], example: Any) -> Tensor:
        single = pytree.tree_map(lambda leaf: leaf.unsqueeze(0), example)
        return loss(Called(own), single).reshape(())

    exact = pytree.tree_map(_doubled, batch)
    found: Tensor = vmap(vmap(of_one, in_dims=(0, None)), in_dims=(None, 0))(dict(weights), exact)
    return found


def _doubled(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        raise ModelError(
            f"Tuning needs batches of tensors, and this one holds a {type(leaf).__name__}; leave tuning out."
        )
    return leaf.double() if leaf.is_floating_point() else leaf


def _steps(losses: Tensor, clip_norm: float) -> Tensor:
    """The clipped vectors of examples, as whole numbers of steps, added up."""
    apart = losses - losses.mean(1, keepdim=True)
    norms = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
    clipped = apart * (clip_norm / norms.clamp_min(clip_norm))
    clipped = torch.where(norms.isfinite(), clipped, 0.0)
    return (clipped * (STEPS / clip_norm)).trunc().to(torch.int64).sum(0).cpu()
