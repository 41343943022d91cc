"""A look at a model before its first step: does every example have a gradient of its own, and do we find it?

Four questions, answered on a few examples, with the model's buffers and the random state put back afterwards:

1. Which dimension of each layer's input holds the examples? (Two passes of different size.)
2. Does an example's loss depend on the other examples of the batch? (The others are replaced.)
3. Does the gradient of one example's loss reach a layer only through that example's rows?
4. Does the sum of the per-example gradients equal autograd's gradient, for every parameter?

A model that fails 2 or 3 is refused. A parameter that fails 4 is used outside the module that owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.errors import ModelError
from tacit import batches
from tacit.raw.capture import Capture
from tacit.raw.operations import Operations
from tacit.raw.site import Layout, Shapes
from tacit.support import Support

SIZES = (2, 3)
Losses = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Findings:
    """What a probe found: the layout of every layer's input, and the parameters used outside their module."""

    layout: Layout
    escaped: frozenset[str]


def probe(model: nn.Module, losses: Losses, batch: Any, views: int) -> Findings:
    """Look at the model through a few rows of a batch; raise ``ModelError`` if it cannot be trained privately."""
    with _untouched(model):
        _refuse_mixing(model, losses, batch, views)
        support = Support.all(model)
        layout = _layout(model, support, losses, batch, views)
        try:
            escaped = _escaped(Capture(model, support), layout, losses, batch, views)
        except _Unattributed:
            # A layer that all examples share in a way we cannot follow: look at the whole model instead.
            escaped = frozenset(support)
        if escaped:
            capture = Capture(model, support, escaped)
            layout = _layout(model, support, losses, batch, views, escaped)
            still = _escaped(capture, layout, losses, batch, views)
            if still:
                raise ModelError(
                    f"The per-example gradients of {', '.join(sorted(still)[:4])} do not sum to autograd's gradient; "
                    "the loss may weigh examples by the whole batch, or the model may recompute its forward pass."
                )
        return Findings(layout, escaped)


class _Unattributed(Exception):
    """An output gradient of one example's loss is not confined to that example's rows."""


def _layout(
    model: nn.Module,
    support: Support,
    losses: Losses,
    batch: Any,
    views: int,
    escaped: frozenset[str] = frozenset(),
) -> Layout:
    capture = Capture(model, support, escaped)
    shapes = []
    for size in SIZES:
        seen = Shapes()
        operations = Operations(capture.blocks, size, size * views, _device(model))
        with torch.no_grad(), capture.watching(operations, seen):
            losses(_sample(batch, size, views))
        shapes.append(seen)
    return Layout.compare(shapes[0], shapes[1], SIZES)


def _escaped(capture: Capture, layout: Layout, losses: Losses, batch: Any, views: int) -> frozenset[str]:
    """Names of the parameters whose per-example gradients do not sum to autograd's gradient."""
    size = SIZES[1]
    few = _sample(batch, size, views)
    state = _random_state()
    parameters = {id(p): p for p in capture.model.parameters()}
    expected = dict.fromkeys(parameters, torch.zeros(()))
    wanted = [p for p in parameters.values() if p.requires_grad]
    with torch.enable_grad():
        found = torch.autograd.grad(losses(few).sum(), wanted, allow_unused=True)
    for parameter, gradient in zip(wanted, found, strict=True):
        expected[id(parameter)] = torch.zeros_like(parameter) if gradient is None else gradient

    per_example = []
    for example in range(size):
        _restore(state)
        operations = Operations(capture.blocks, size, size * views, _device(capture.model))
        with torch.enable_grad(), capture.watching(operations, layout):
            chosen = losses(few)[example]
            if chosen.requires_grad:
                chosen.backward()  # type: ignore[no-untyped-call]
            operations.finish()
        per_example.append(operations)
        norms = operations.norms_squared
        if norms is not None and bool((norms[torch.arange(size) != example] != 0).any()):
            raise _Unattributed

    whole = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    wrong = set()
    for key, name in capture.names.items():
        total = torch.zeros_like(expected[key])
        for operations in per_example:
            if key in operations.uses:
                ones = torch.ones(size, dtype=total.dtype, device=total.device)
                total = total + operations.uses[key].weighted_sum(ones, capture.blocks[key])
        error = (total - expected[key]).norm()
        # A gradient that is zero but for rounding is compared with the whole model's.
        if bool(error > _tolerance() * expected[key].norm() + 1e-5 * whole):
            wrong.add(name)
    return frozenset(wrong)


def _refuse_mixing(model: nn.Module, losses: Losses, batch: Any, views: int) -> None:
    """Replace the other examples by copies of the first: its loss must not notice, and no buffer may change."""
    size = SIZES[1]
    few = _sample(batch, size, views)
    alone = batches.take(few, torch.arange(size * views) % views)
    if not _differ(few, alone):
        few = pytree.tree_map(_shifted(views), few)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = _random_state()
    with torch.no_grad():
        among_others = losses(few)[0]
        _restore(state)
        among_copies = losses(alone)[0]
    if not torch.allclose(among_others, among_copies, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ModelError(
            f"The loss of one example depends on the other examples of its batch{_suspects(model)}; per-example "
            "gradients do not exist. Use GroupNorm or LayerNorm instead of BatchNorm, or freeze the statistics with "
            ".eval(), and keep batch statistics out of the loss."
        )
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ModelError(
                f"The buffer {name!r} changes in a forward pass and would carry private data out of the training "
                "step unprotected; freeze it with .eval() on its module."
            )


def _suspects(model: nn.Module) -> str:
    names = [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
    return f" through {', '.join(names[:3])}, in training mode" if names else ""


def _sample(batch: Any, examples: int, views: int) -> Any:
    """The first examples of a batch, repeated from the start where there are too few."""
    available = batches.rows(batch) // views
    index = torch.arange(examples)[:, None] % available * views + torch.arange(views)
    return batches.take(batch, index.flatten())


def _differ(one: Any, other: Any) -> bool:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return any(isinstance(a, Tensor) and not torch.equal(a, b) for a, b in pairs)


def _shifted(views: int) -> Callable[[Any], Any]:
    """Change every example but the first, for a batch that holds only one."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or not leaf.is_floating_point():
            return leaf
        leaf = leaf.clone()
        leaf[views:] = 2 * leaf[views:] + 1
        return leaf

    return change


def _tolerance() -> float:
    return 0.1 if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") else 1e-2


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _random_state() -> list[Any]:
    states: list[Any] = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state_all())
    return states


def _restore(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1])


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    state = _random_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        _restore(state)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
