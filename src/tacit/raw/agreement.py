"""When two computations of a loss or a gradient agree: tolerances, and how much of a difference rounding explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.raw.probe_batches import NUDGES, nudged

Losses = Callable[[Any], Tensor]
Gradients = list[Tensor]


@dataclass(frozen=True)
class Precision:
    """How closely two computations must agree: of a loss; of a gradient, relative to itself and to the whole.

    Terms of an odd example may cancel to nothing but rounding, which is no sign of mixing. So what changes when inputs
    change by a ``nudge``, in proportion, is allowed to differ by ``doubt`` times that change.
    """

    double: bool
    loss: float
    own: float
    whole: float
    nudge: float
    doubt: float


DOUBLE = Precision(True, 1e-7, 1e-6, 1e-10, nudge=1e-9, doubt=1e-4)
SINGLE = Precision(False, 1e-4, 2e-3, 1e-5, nudge=1e-4, doubt=0.05)
REDUCED = Precision(False, 2e-2, 0.1, 1e-3, nudge=1e-2, doubt=1.0)

AT_ONCE = 1 << 20
"""Numbers of a difference that are formed at once."""

_LEAVES = "you can only change requires_grad flags of leaf variables"


def gradients_of(
    losses: Losses, batch: Any, wanted: Sequence[nn.Parameter], weights: Tensor
) -> tuple[Tensor, Gradients]:
    """The losses of a batch and autograd's gradient of their weighted sum."""
    # Gradients of the inputs are asked for as well: without them, GroupNorm as a first layer crashes torch 2.13 on
    # channels-last images. Models that ask for them themselves (Wav2Vec2) get inputs without.
    try:
        return _gradients_of(losses, batch, wanted, weights, of_inputs=True)
    except RuntimeError as error:
        if _LEAVES not in str(error):
            raise
    return _gradients_of(losses, batch, wanted, weights, of_inputs=False)


def _gradients_of(
    losses: Losses, batch: Any, wanted: Sequence[nn.Parameter], weights: Tensor, *, of_inputs: bool
) -> tuple[Tensor, Gradients]:
    leaves, structure = pytree.tree_flatten(batch)
    inputs = [x.detach() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    inputs = [x.requires_grad_(of_inputs) for x in inputs]
    with torch.enable_grad():
        given = iter([x.clone() for x in inputs])
        leaves = [next(given) if isinstance(x, Tensor) and x.is_floating_point() else x for x in leaves]
        values = losses(pytree.tree_unflatten(leaves, structure))
        if not values.requires_grad:
            return values.detach(), [torch.zeros_like(p) for p in wanted]
        # An example without weight is left out: zero times a gradient that is not finite is not zero.
        kept = weights != 0
        total = (values[kept.to(values.device)] * weights[kept].to(values.device, values.dtype)).sum()
        asked = [*wanted, *inputs] if of_inputs else list(wanted)
        found = torch.autograd.grad(total, asked, allow_unused=True)[: len(wanted)]
    dense = [g.to_dense() if g is not None and g.is_sparse else g for g in found]
    return values.detach(), [
        torch.zeros_like(p) if g is None else g for p, g in zip(wanted, dense, strict=True)
    ]


@dataclass(frozen=True)
class Doubts:
    """By how much rounding alone may change the losses of examples, and the gradient of every parameter."""

    losses: Tensor
    gradients: Sequence[float]

    @staticmethod
    def added(parts: Sequence[Doubts]) -> Doubts:
        """The doubts about a sum."""
        columns = zip(*(part.gradients for part in parts), strict=True)
        return Doubts(torch.cat([part.losses for part in parts]), [sum(column) for column in columns])


def doubts_of(
    losses: Losses,
    batch: Any,
    wanted: Sequence[nn.Parameter],
    weights: Tensor,
    precision: Precision,
    known: tuple[Tensor, Gradients],
) -> Doubts:
    """What nudges of the inputs change, scaled down to what rounding can; ``known`` are the losses and gradients."""
    values, gradients = known
    change, moved = torch.zeros_like(values, dtype=torch.float64), [0.0] * len(gradients)
    for pattern in NUDGES:
        near = nudged(batch, precision.nudge, pattern)
        nudged_values, nudged_gradients = gradients_of(losses, near, wanted, weights)
        change = change.maximum((nudged_values - values).abs().double().nan_to_num(0.0, 0.0))
        sizes = [_distance(a, b) for a, b in zip(gradients, nudged_gradients, strict=True)]
        moved = [max(a, b) if math.isfinite(b) else a for a, b in zip(moved, sizes, strict=True)]
        del nudged_gradients  # or they would still be held while the next are computed
    return Doubts(precision.doubt * change, [precision.doubt * size for size in moved])


def differing(
    names: Sequence[str], expected: Gradients, found: Gradients, precision: Precision, doubts: Doubts
) -> frozenset[str]:
    """The parameters whose gradient is another than expected, judged by its own size and, for rounding, that of all."""
    if not names:
        return frozenset()
    whole = float(torch.stack([gradient.norm().double().cpu() for gradient in expected]).norm())
    return frozenset(
        name
        for name, gradient, other, doubt in zip(names, expected, found, doubts.gradients, strict=True)
        if not _distance(other, gradient)
        <= precision.own * float(gradient.norm()) + precision.whole * whole + doubt + 1e-300
    )


def _distance(one: Tensor, other: Tensor) -> float:
    """The norm of a difference, of which a large one is not formed as a whole."""
    if one.dim() == 0 or one.numel() <= AT_ONCE:
        return float((one - other).norm())
    step = max(1, AT_ONCE * len(one) // one.numel())
    return math.hypot(
        *(
            float((a - b).norm())
            for a, b in zip(torch.split(one, step), torch.split(other, step), strict=True)
        )
    )


def same(one: Tensor, other: Tensor, tolerance: float, doubt: Tensor) -> bool:
    """Whether losses agree."""
    difference = (one.to(other.dtype) - other).abs().double()
    return bool((difference <= tolerance * (other.abs().double() + 0.1) + doubt).all())
