"""Isolation by construction: every example is a batch of its own, from the data set to its gradient.

Where ``torch.func`` can follow the model, examples of one shape are worked on together under ``vmap``: the model sees a
batch of one, and no operation can reach another example. Elsewhere (control flow that depends on the data, lengths that
differ) they are worked on one after the other. What is left is state that outlives an example: buffers, attributes of
modules, globals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from tacit import batches
from tacit.raw.capture import Capture
from tacit.raw.memory import is_out_of_memory
from tacit.raw.operations import Operations
from tacit.raw.probe import Losses, gradients_of, refuse_renormalised_tables, refuse_writes
from tacit.raw.rehearsal import untouched
from tacit.raw.uses import Direct
from tacit.support import Support

HOLD = 1 << 24
"""Elements of per-example gradients that are held at once."""

TOGETHER = 64
"""Examples that are worked on at once, at most."""


class Singles(list[Any]):
    """Batches of one example each: what a chunk is where examples are isolated by construction."""


class Alone:
    """Per-example gradients of examples that never meet."""

    def __init__(self, model: nn.Module, losses: Losses, views: int) -> None:
        self._model, self._losses, self._views = model, losses, views
        self._wrapped = _Losses(model, losses)
        # torch 2.13 has a wrong gradient of instance_norm for a batch of one; each example then comes twice, and the
        # first copy counts.
        self._twice = any(isinstance(m, nn.modules.instancenorm._InstanceNorm) for m in model.modules())
        self._vectorised = not self._twice

    def rehearse(self, chunk: Any) -> None:
        """Refuse a model that writes to itself in a forward pass."""
        refuse_renormalised_tables(self._model)
        for single in self._split(chunk)[:1]:
            with untouched(self._model):
                refuse_writes(self._model, self._losses, single)

    def passes(
        self, chunk: Any, support: Support, place: Callable[[Any], Any]
    ) -> Iterator[tuple[Operations, Capture]]:
        """The gradients of the examples of a chunk, some at a time; those that are not finite are left out."""
        capture = Capture(self._model, support)
        parameters = {capture.names[id(p)]: p for p in self._model.parameters() if id(p) in capture.blocks}
        if not parameters:
            return
        most = max(1, min(TOGETHER, HOLD // sum(p.numel() for p in parameters.values())))
        for group in _alike([place(single) for single in self._split(chunk)], most):
            found = self._gradients(group, parameters)
            yield from _kept(found, parameters, capture)

    def _split(self, chunk: Any) -> list[Any]:
        if isinstance(chunk, Singles):
            return list(chunk)
        rows = batches.rows(chunk)
        return [batches.part(chunk, start, start + self._views) for start in range(0, rows, self._views)]

    def _gradients(self, group: list[Any], parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        """For every parameter the gradients of the examples of a group, stacked."""
        if self._vectorised:
            try:
                return self._together(group, parameters)
            except Exception as error:
                if is_out_of_memory(error) and len(group) > 1:
                    half = len(group) // 2
                    parts = [self._gradients(part, parameters) for part in (group[:half], group[half:])]
                    return {name: torch.cat([part[name] for part in parts]) for name in parameters}
                if is_out_of_memory(error):
                    raise
                self._vectorised = False
        return self._one_by_one(group, parameters)

    def _together(self, group: list[Any], parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        flat = [pytree.tree_flatten(single)[0] for single in group]
        structure = pytree.tree_flatten(group[0])[1]
        stacked = [
            torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0]
            for leaves in zip(*flat, strict=True)
        ]
        tensors = [leaf for leaf in stacked if isinstance(leaf, Tensor)]

        def loss(values: dict[str, Tensor], given: list[Tensor]) -> Tensor:
            waiting = iter(given)
            leaves = [next(waiting) if isinstance(leaf, Tensor) else leaf for leaf in stacked]
            single = pytree.tree_unflatten(leaves, structure)
            return functional_call(self._wrapped, values, (single,))[0]  # type: ignore[no-any-return]

        values = {f"model.{name}": parameter.detach() for name, parameter in parameters.items()}
        with torch.no_grad():
            found = vmap(grad(loss), in_dims=(None, 0), randomness="different")(values, tensors)
        return {name: found[f"model.{name}"] for name in parameters}

    def _one_by_one(self, group: list[Any], parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in parameters}
        for single in group:
            copies = 2 if self._twice else 1
            rows = torch.arange(self._views).repeat(copies)
            weights = torch.tensor([1.0, 0.0][:copies], dtype=torch.float64)
            _, gradients = gradients_of(
                self._losses, batches.take(single, rows), list(parameters.values()), weights
            )
            for name, gradient in zip(parameters, gradients, strict=True):
                found[name].append(gradient)
        return {name: torch.stack(gradients) for name, gradients in found.items()}


class _Losses(nn.Module):
    """The losses of a batch as a module, so that the model's parameters can be replaced by name."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model, self._of = model, losses

    def forward(self, batch: Any) -> Tensor:
        return self._of(batch)


def _alike(singles: Sequence[Any], most: int) -> list[list[Any]]:
    """Examples that can be stacked, in groups of at most ``most``, in order of their first."""
    groups: dict[Hashable, list[list[Any]]] = {}
    for single in singles:
        leaves, structure = pytree.tree_flatten(single)
        shape = (
            str(structure),
            *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves),
        )
        found = groups.setdefault(shape, [[]])
        if len(found[-1]) == most:
            found.append([])
        found[-1].append(single)
    return [group for found in groups.values() for group in found]


def _kept(
    found: dict[str, Tensor], parameters: dict[str, nn.Parameter], capture: Capture
) -> Iterator[tuple[Operations, Capture]]:
    while True:
        examples = len(next(iter(found.values())))
        if not examples:
            return
        device = next(iter(parameters.values())).device
        operations = Operations(capture.blocks, examples, examples, device)
        with torch.no_grad():
            for name, parameter in parameters.items():
                operations.add(parameter, Direct(found[name].to(parameter.dtype)))
            operations.finish()
        assert operations.norms_squared is not None
        finite = torch.isfinite(operations.norms_squared)
        if bool(finite.all()):
            yield operations, capture
            return
        found = {name: gradients[finite] for name, gradients in found.items()}
