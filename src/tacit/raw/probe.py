"""A look at a model before its first step: does every example have a gradient of its own, and do we find it?

Four questions, answered on a few examples, with the model's buffers and the random state put back afterwards:

1. Does an example's loss depend on the other examples of the batch? (The others are replaced.)
2. Which dimension of each layer's input holds the examples? (Two passes of different size.)
3. Does the gradient of one example's loss reach a layer only through that example's rows?
4. Does the sum of the per-example gradients equal autograd's gradient, for every parameter?

A model that fails 1 is refused. A layer that fails 2 or 3 is served by ``torch.func`` over the whole model, and a
parameter that fails 4, because it is used outside the module that owns it, as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit import batches
from tacit.errors import ModelError
from tacit.raw.capture import Capture
from tacit.raw.footprint import Footprint
from tacit.raw.generators import random_state, restore_random_state
from tacit.raw.memory import is_out_of_memory
from tacit.raw.operations import Operations
from tacit.raw.site import Layout, Shapes
from tacit.support import Support

SIZES = (2, 3)
Losses = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Findings:
    """What a probe found: the layout of every layer's input, and the parameters used outside their module.

    ``conclusive`` is false where the batch held no two different examples, so that nothing could be mixed.
    """

    layout: Layout
    escaped: frozenset[str]
    conclusive: bool


def probe(
    model: nn.Module, losses: Losses, batch: Any, views: int, *, reduced_precision: bool = False
) -> Findings | None:
    """Look at the model through a few examples of a batch; raise ``ModelError`` if it cannot be trained privately.

    None if no example of the batch has a finite gradient: then all of them count as zero.
    """
    _refuse_renormalised_tables(model)
    with untouched(model):
        few, conclusive = _different(batch, views)
        if not _finite(model, losses, few):
            finite = _finite_examples(model, losses, batch, views)
            if finite is None:
                return None
            few, conclusive = _different(finite, views)
        if not conclusive and _suspects(model):
            raise _mixing(model)
        _refuse_mixing(model, losses, few, views, 1e-3 if reduced_precision else 1e-5)
        support = Support.all(model)
        tolerance = 0.1 if reduced_precision else 1e-2
        layout, escaped = Layout(), frozenset(support)
        try:
            layout = _layout(model, support, losses, few, views)
            escaped = _escaped(Capture(model, support), layout, losses, few, views, tolerance)
        except Exception as error:
            # A layer is used in a way that its rule cannot follow, whatever breaks first: look at the whole model.
            if is_out_of_memory(error):
                raise
        if escaped:
            capture = Capture(model, support, escaped)
            layout = _layout(model, support, losses, few, views, escaped)
            try:
                still = _escaped(capture, layout, losses, few, views, tolerance)
            except _Unattributed:
                still = escaped
            if still:
                raise ModelError(
                    f"The per-example gradients of {', '.join(sorted(still)[:4])} do not sum to autograd's gradient; "
                    "the loss may use them outside the model's forward pass or weigh examples by the whole batch."
                )
        return Findings(layout, escaped, conclusive)


class _Unattributed(Exception):
    """The watched pass gives other losses, or the gradient of one example's loss reaches another example's rows."""


def _layout(
    model: nn.Module,
    support: Support,
    losses: Losses,
    few: Any,
    views: int,
    escaped: frozenset[str] = frozenset(),
) -> Layout:
    capture = Capture(model, support, escaped)
    shapes = []
    for size in SIZES:
        seen = Shapes()
        operations = Operations(capture.blocks, size, size * views, _device(model))
        with torch.no_grad(), capture.watching(operations, seen):
            losses(batches.take(few, torch.arange(size * views)))
        shapes.append(seen)
    return Layout.compare(shapes[0], shapes[1], SIZES)


def _escaped(
    capture: Capture, layout: Layout, losses: Losses, few: Any, views: int, tolerance: float
) -> frozenset[str]:
    """Names of the parameters whose per-example gradients do not sum to autograd's gradient."""
    size = SIZES[1]
    state = random_state()
    parameters = {id(p): p for p in capture.model.parameters()}
    expected = dict.fromkeys(parameters, torch.zeros(()))
    wanted = [p for p in parameters.values() if p.requires_grad]
    with torch.enable_grad():
        plain, found = _gradients(losses, few, wanted)
    for parameter, gradient in zip(wanted, found, strict=True):
        expected[id(parameter)] = torch.zeros_like(parameter) if gradient is None else gradient

    per_example = []
    for example in range(size):
        restore_random_state(state)
        operations = Operations(capture.blocks, size, size * views, _device(capture.model))
        with torch.enable_grad(), capture.watching(operations, layout):
            watched = losses(few)
            if watched[example].requires_grad:
                watched[example].backward()  # type: ignore[no-untyped-call]
            operations.finish()
        per_example.append(operations)
        norms = operations.norms_squared
        if norms is not None and bool((norms[torch.arange(size) != example] != 0).any()):
            raise _Unattributed
        if not torch.allclose(watched, plain, rtol=tolerance, atol=1e-5):
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
        if bool(error > tolerance * (expected[key].norm() + 1e-3 * whole)):
            wrong.add(name)
    return frozenset(wrong)


def _refuse_mixing(model: nn.Module, losses: Losses, few: Any, views: int, tolerance: float) -> None:
    """Replace the others by copies of each example in turn: its loss must not notice."""
    state = random_state()
    with torch.no_grad(), Footprint(model).kept(refuse=True):
        among_others = losses(few)
        for example in range(SIZES[1]):
            own = torch.arange(SIZES[1] * views) % views + example * views
            restore_random_state(state)
            among_copies = losses(batches.take(few, own))
            if not torch.allclose(
                among_others[example], among_copies[example], rtol=tolerance, atol=tolerance / 10
            ):
                raise _mixing(model)


def _refuse_renormalised_tables(model: nn.Module) -> None:
    """An embedding with ``max_norm`` rewrites its rows in the forward pass: refused before any pass."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ModelError(
                f"{name}: an embedding with max_norm rewrites the rows it looks up, without protection; set "
                "max_norm=None."
            )


def _mixing(model: nn.Module) -> ModelError:
    return ModelError(
        f"The loss of one example depends on the other examples of its batch{_suspects(model)}; per-example gradients "
        "do not exist. Use GroupNorm or LayerNorm instead of BatchNorm, or freeze the statistics with .eval(), and "
        "keep batch statistics out of the loss."
    )


def _suspects(model: nn.Module) -> str:
    names = [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
    return f" through {', '.join(names[:3])}, in training mode" if names else ""


def _different(batch: Any, views: int) -> tuple[Any, bool]:
    """Three examples, the first one and, where there are any, others that differ from it; and whether they do."""
    examples = batches.rows(batch) // views
    differs = torch.zeros(examples, dtype=torch.bool)
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim():
            rows = leaf.reshape(examples, -1)
            differs |= (rows != rows[:1]).any(1).cpu()
    others = differs.nonzero().flatten().tolist()
    chosen = [0, *others, *range(examples)][: SIZES[1]]
    return _examples(batch, (chosen * SIZES[1])[: SIZES[1]], views), bool(others)


def _examples(batch: Any, chosen: list[int], views: int) -> Any:
    return batches.take(batch, (torch.tensor(chosen)[:, None] * views + torch.arange(views)).flatten())


def _finite(model: nn.Module, losses: Losses, batch: Any) -> bool:
    """Whether the losses of a batch and their gradient are finite."""
    with torch.enable_grad():
        values, found = _gradients(losses, batch, [p for p in model.parameters() if p.requires_grad])
    return all(bool(t.isfinite().all()) for t in (values, *found) if t is not None)


def _finite_examples(model: nn.Module, losses: Losses, batch: Any, views: int) -> Any | None:
    """The examples that have a finite gradient, tried one by one."""
    finite = [
        example
        for example in range(batches.rows(batch) // views)
        if _finite(model, losses, _examples(batch, [example] * SIZES[0], views))
    ]
    return _examples(batch, finite, views) if finite else None


def _gradients(losses: Losses, batch: Any, wanted: list[nn.Parameter]) -> tuple[Tensor, list[Tensor | None]]:
    """The losses of a batch and autograd's gradient of their sum, None for what it does not reach."""
    leaves, structure = pytree.tree_flatten(batch)
    # Gradients of the inputs are asked for as well: without them, GroupNorm as a first layer crashes torch 2.13 on
    # channels-last images.
    inputs = [x.detach().requires_grad_() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    given = iter([x.clone() for x in inputs])
    leaves = [next(given) if isinstance(x, Tensor) and x.is_floating_point() else x for x in leaves]
    values = losses(pytree.tree_unflatten(leaves, structure))
    if not values.requires_grad:
        return values, [None] * len(wanted)
    found = torch.autograd.grad(values.sum(), [*wanted, *inputs], allow_unused=True)[: len(wanted)]
    return values, [g.to_dense() if g is not None and g.is_sparse else g for g in found]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside changes neither the model nor the random state; writing to the model is refused."""
    state = random_state()
    try:
        with Footprint(model).kept(refuse=True):
            yield
    finally:
        restore_random_state(state)
