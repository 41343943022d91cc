"""Per-example gradients of any module, by ``torch.func``: slower than a rule, exact all the same.

Serves parameters that a module without a rule holds itself: class tokens, positions, scales, unknown layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils import _pytree as pytree

from tacit.errors import ModelError
from tacit.raw.gradients import Direct, PerExampleGradient
from tacit.raw.watched_layer import WatchedLayer

HOLD = 1 << 24
"""Per-example gradients of up to this many elements are held; larger ones are formed again when they are summed."""


def fallback(
    module: nn.Module,
    names: Sequence[str],
    forward: Callable[..., Any],
    bypass: Callable[[], Any],
    layer: WatchedLayer,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The module's own forward pass; gradients of its parameters ``names`` are found after the backward pass.

    ``bypass()`` is a context in which modules run unwatched.
    """
    output = forward(*args, **kwargs)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    inputs = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    in_dims = [
        layer.dimension(f"input {i}", x) if isinstance(x, Tensor) else None for i, x in enumerate(inputs)
    ]

    parts, out_structure = pytree.tree_flatten(output)
    received: dict[int, Tensor] = {}
    out_dims: dict[int, int | None] = {}
    for place, part in enumerate(parts):
        if not isinstance(part, Tensor) or not part.is_floating_point():
            continue
        out_dims[place] = dim = layer.dimension(f"output {place}", part)
        if dim is None and not layer.probing:
            part = layer.recorder.spread(part)
        # An alias of its own for every output: the gradient that flows into it comes from that output's uses alone,
        # also where the module gives out one tensor twice, a slice of another output, or its own input.
        part = part.view_as(part) if part.requires_grad else part.clone()
        parts[place] = layer.recorder.hook(part, partial(received.__setitem__, place))

    parameters = {name: module.get_parameter(name) for name in names}

    def run(values: dict[str, Tensor], single: list[Any]) -> tuple[Tensor, ...]:
        call_args, call_kwargs = pytree.tree_unflatten(single, structure)
        result = functional_call(module, values, call_args, call_kwargs)
        found = pytree.tree_leaves(result)
        return tuple(found[place] for place in sorted(received))

    def gradients(chosen: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        values = {name: parameters[name].detach() for name in chosen}
        tensors = [x for x, dim in zip(inputs, in_dims, strict=True) if dim is not None]
        dims = [dim for dim in in_dims if dim is not None]
        outputs = [
            received[place] if out_dims[place] is None else received[place].movedim(out_dims[place] or 0, 0)
            for place in sorted(received)
        ]

        def one(rows: list[Tensor], b: list[Tensor]) -> dict[str, Tensor]:
            waiting = iter([row.unsqueeze(dim) for row, dim in zip(rows, dims, strict=True)])
            single = [x if dim is None else next(waiting) for x, dim in zip(inputs, in_dims, strict=True)]
            made, pull = vjp(lambda v: run(v, single), values)  # type: ignore[misc]
            cotangents = tuple(g.reshape(m.shape).to(m.dtype) for g, m in zip(b, made, strict=True))
            return pull(cotangents)[0]  # type: ignore[no-any-return]

        rows = [x.movedim(dim, 0)[start:stop] for x, dim in zip(tensors, dims, strict=True)]
        with bypass(), torch.enable_grad():
            try:
                return vmap(one, randomness="error")(rows, [b[start:stop] for b in outputs])
            except RuntimeError as error:
                raise ModelError(
                    f"{layer.name or 'The model'} ({type(module).__name__}) has no rule, and its per-example gradients "
                    f"cannot be found by torch.func: {str(error).splitlines()[0]} Register a rule for it (see "
                    "tacit.raw.rules), move the parameter into its own module, or train with "
                    'isolation="construction".'
                ) from error

    def work() -> None:
        if not received:
            return
        recorder = layer.recorder
        active = [name for name in names if recorder.is_active(parameters[name])]
        views = recorder.rows // recorder.examples
        if recorder.rows * sum(parameters[name].numel() for name in active) <= HOLD:
            for name, found in gradients(active, 0, recorder.rows).items():
                rows = found.view(recorder.examples, views, *found.shape[1:])
                recorder.add(parameters[name], Direct(rows.sum(1) if views > 1 else rows[:, 0]))
            return
        for name in active:
            recorder.add(parameters[name], _Functional(gradients, name, recorder.examples, views))

    layer.recorder.defer([p for p in parameters.values() if layer.recorder.is_active(p)], work)
    return pytree.tree_unflatten(parts, out_structure)


class _Functional(PerExampleGradient):
    """Gradients formed on demand, a few examples at a time."""

    def __init__(
        self,
        gradients: Callable[[Sequence[str], int, int], dict[str, Tensor]],
        name: str,
        examples: int,
        views: int,
    ) -> None:
        self._gradients, self._name = gradients, name
        self.examples, self._views = examples, views

    def per_example(self, start: int, stop: int) -> Tensor:
        rows = self._gradients([self._name], start * self._views, stop * self._views)[self._name]
        return rows.view(stop - start, self._views, *rows.shape[1:]).sum(1)
