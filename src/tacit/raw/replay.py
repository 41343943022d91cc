"""One operation in which parameters meet examples: the gradients that it gives each example, again and alone.

Common operations have a formula. Any other is run once more for every example, by ``torch.func`` in one go where the
operation allows it, and one example after the other where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils import _pytree as pytree

from tacit.errors import ModelError
from tacit.raw.generators import drawn_since, random_state
from tacit.raw.gradients import Convolution, Depthwise, Direct, Embedding, Linear, PerExampleGradient
from tacit.raw.gradients.convolution import Geometry

HOLD = 1 << 24
"""Per-example gradients of up to this many elements are held; larger ones are formed again when they are summed."""

_ADD = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}
_MULTIPLY = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply}
_MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}
_CONVOLUTIONS: dict[Any, int] = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


@dataclass(frozen=True)
class Growth:
    """What grows with the number of examples in one operation.

    For every argument and every output: the dimension that grows, or None; ``numbers`` are the places of whole
    numbers among the arguments that do (``x.expand(rows, -1)``).
    """

    inputs: tuple[int | None, ...]
    numbers: frozenset[int]
    outputs: tuple[int | None, ...]
    dimensions: tuple[int, ...]
    """How many dimensions each output has."""

    @property
    def shared(self) -> bool:
        """Whether all examples share what the operation gives."""
        return all(dim is None for dim in self.outputs)


@dataclass(frozen=True)
class Operation:
    """One call: the function, its arguments as leaves, and at which places parameters (or what they make up) stand."""

    function: Callable[..., Any]
    leaves: Sequence[Any]
    structure: Any
    places: Sequence[int]
    growth: Growth
    examples: int
    autocast: tuple[str, torch.dtype, bool]

    def formula(self) -> Callable[[Tensor], dict[int, PerExampleGradient]] | None:
        """What the gradient of a single output becomes, where a formula is known; by places of the arguments."""
        if len(self.growth.outputs) != 1 or self.growth.outputs[0] is None or self.autocast[2]:
            return None
        if any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in self.leaves):
            return None
        args, kwargs = pytree.tree_unflatten(list(range(len(self.leaves))), self.structure)
        if self.function in _ADD and not kwargs and len(args) == 2:
            return self._broadcast(self.places, lambda b, _: b)
        if self.function in _MULTIPLY and not kwargs and len(args) == 2 and len(self.places) == 1:
            other = self.leaves[1 - self.places[0]]
            return self._broadcast(self.places, lambda b, _: b * other)
        if self.function is F.linear:
            return self._linear(args, kwargs)
        if self.function in _MATMUL and tuple(self.places) == (1,) and self.leaves[1].dim() == 2:
            return self._matmul()
        if self.function is F.embedding:
            return self._embedding(args, kwargs)
        if self.function in _CONVOLUTIONS:
            return self._convolution(args, kwargs, _CONVOLUTIONS[self.function])
        return None

    def replayed(self, received: dict[int, Tensor], start: int, stop: int) -> list[Tensor]:
        """The gradients of examples ``start`` to ``stop`` for every place, from the gradients of the outputs."""
        growing = [(i, d) for i, d in enumerate(self.growth.inputs) if d is not None]
        rows = [self._split(self.leaves[i], d)[start:stop] for i, d in growing]
        order = sorted(received)
        gradients = [self._split(received[o], self.growth.outputs[o] or 0)[start:stop] for o in order]
        values = [self.leaves[place].detach() for place in self.places]

        def run(own: Sequence[Tensor], *given: Tensor) -> tuple[Tensor, ...]:
            leaves = list(self.leaves)
            for (i, dim), row in zip(growing, own, strict=True):
                leaves[i] = row.movedim(0, dim)
            for i in self.growth.numbers:
                leaves[i] = leaves[i] // self.examples
            for place, value in zip(self.places, given, strict=True):
                leaves[place] = value
            args, kwargs = pytree.tree_unflatten(leaves, self.structure)
            device, dtype, enabled = self.autocast
            with torch.autocast(device, dtype=dtype, enabled=enabled):
                made = out_of_place(self.function)(*args, **kwargs)
            found = pytree.tree_leaves(args[0] if self.function is Tensor.__setitem__ else made)
            found = [x for x in found if isinstance(x, Tensor)]
            return tuple(found[o] for o in order)

        def fit(b: Tensor, made: Tensor, o: int) -> Tensor:
            return b.movedim(0, self.growth.outputs[o] or 0).reshape(made.shape).to(made.dtype)

        def one(own: list[Tensor], b: list[Tensor]) -> tuple[Tensor, ...]:
            made, pull = vjp(lambda *given: run(own, *given), *values)  # type: ignore[misc]
            cotangents = tuple(fit(g, m, o) for g, m, o in zip(b, made, order, strict=True))
            return pull(cotangents)  # type: ignore[no-any-return]

        with torch.enable_grad():
            try:
                return list(vmap(one, randomness="error")(rows, gradients))
            except (RuntimeError, NotImplementedError, TypeError, IndexError):
                before = random_state()
                found = self._one_by_one(run, fit, rows, gradients, values, order)
                if drawn_since(before):
                    raise ModelError(
                        f"The operation {self.function.__name__} draws random numbers and uses parameters that have no "
                        "rule; draw in an operation of its own (F.dropout), or train with "
                        'isolation="construction".'
                    ) from None
                return found

    def _one_by_one(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        fit: Callable[[Tensor, Tensor, int], Tensor],
        rows: Sequence[Tensor],
        gradients: Sequence[Tensor],
        values: Sequence[Tensor],
        order: Sequence[int],
    ) -> list[Tensor]:
        found: list[list[Tensor]] = [[] for _ in values]
        for example in range(len(gradients[0])):
            given = [value.detach().requires_grad_() for value in values]
            made = run([row[example].clone() for row in rows], *given)
            cotangents = [fit(b[example], m, o) for b, m, o in zip(gradients, made, order, strict=True)]
            pulled = torch.autograd.grad(made, given, cotangents, allow_unused=True)
            for part, g, value in zip(found, pulled, values, strict=True):
                part.append(torch.zeros_like(value) if g is None else g)
        return [torch.stack(part) for part in found]

    # Formulas -----------------------------------------------------------------------------------------------------

    def _broadcast(
        self, places: Sequence[int], product: Callable[[Tensor, int], Tensor]
    ) -> Callable[[Tensor], dict[int, PerExampleGradient]]:
        """An element of the result is made of one element of the parameter: sum over what it was broadcast to."""

        def gradients(b: Tensor) -> dict[int, PerExampleGradient]:
            dim = self.growth.outputs[0]
            assert dim is not None
            found: dict[int, PerExampleGradient] = {}
            for place in places:
                value = self.leaves[place]
                parts = self._split(product(b, place), dim).sum(1)
                shape = (1,) * (b.dim() - value.dim()) + tuple(value.shape)
                rest = [size for i, size in enumerate(shape) if i != dim]
                summed = [i + 1 for i, size in enumerate(rest) if size == 1 and parts.shape[i + 1] != 1]
                parts = parts.sum(summed) if summed else parts
                found[place] = Direct(parts.reshape(self.examples, *value.shape).to(value.dtype))
            return found

        return gradients

    def _linear(self, args: Any, kwargs: Any) -> Callable[[Tensor], dict[int, PerExampleGradient]] | None:
        names = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        x, batch = names["input"], self.growth.inputs[names["input"]]
        if x in self.places or batch is None or batch == self.leaves[x].dim() - 1:
            return None

        def gradients(b: Tensor) -> dict[int, PerExampleGradient]:
            found: dict[int, PerExampleGradient] = {}
            b = self._positions(b, batch)
            for name in ("weight", "bias"):
                place = names.get(name)
                if place in self.places:
                    value = self.leaves[place]
                    found[place] = (
                        Linear(self._positions(self.leaves[x], batch).to(value.dtype), b.to(value.dtype))
                        if name == "weight"
                        else Direct(b.to(value.dtype).sum(1))
                    )
            return found

        return gradients

    def _matmul(self) -> Callable[[Tensor], dict[int, PerExampleGradient]] | None:
        x, batch = self.leaves[0], self.growth.inputs[0]
        if batch is None or x.dim() < 2 or batch == x.dim() - 1:
            return None
        return lambda b: {1: Linear(self._positions(b, batch), self._positions(x, batch))}

    def _embedding(self, args: Any, kwargs: Any) -> Callable[[Tensor], dict[int, PerExampleGradient]] | None:
        names = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
        ids, table, batch = names["input"], names["weight"], self.growth.inputs[names["input"]]
        padding = self.leaves[names["padding_idx"]] if "padding_idx" in names else None
        if (
            batch is None
            or tuple(self.places) != (table,)
            or (len(args) > 3 and self.leaves[args[3]] is not None)
        ):
            return None

        def gradients(b: Tensor) -> dict[int, PerExampleGradient]:
            tokens = self._positions(self.leaves[ids].unsqueeze(-1), batch).squeeze(-1)
            value = self.leaves[table]
            b = self._positions(b, batch).to(value.dtype)
            return {table: Embedding(tokens, b, len(value), padding)}

        return gradients

    def _convolution(
        self, args: Any, kwargs: Any, dimensions: int
    ) -> Callable[[Tensor], dict[int, PerExampleGradient]] | None:
        order = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        names = dict(zip(order, args, strict=False)) | kwargs
        x = names["input"]
        given = {
            name: pytree.tree_map(lambda i: self.leaves[i], names[name])
            for name in order[3:]
            if name in names
        }
        if (
            x in self.places
            or self.growth.inputs[x] != 0
            or self.leaves[x].dim() != dimensions + 2
            or isinstance(given.get("padding"), str)
        ):
            return None

        def several(name: str, usual: int) -> tuple[int, ...]:
            value = given.get(name, usual)
            value = tuple(value) if isinstance(value, Sequence) else (value,)
            return value * dimensions if len(value) == 1 else value

        geometry = Geometry(
            several("stride", 1), several("padding", 0), several("dilation", 1), given.get("groups", 1)
        )

        def gradients(b: Tensor) -> dict[int, PerExampleGradient]:
            found: dict[int, PerExampleGradient] = {}
            bias, weight = names.get("bias"), names["weight"]
            if bias in self.places:
                found[bias] = Direct(self._positions(b.movedim(1, -1), 0).sum(1))
            if weight in self.places:
                a, value = self.leaves[x].to(self.leaves[weight].dtype), self.leaves[weight]
                depthwise = 1 < geometry.groups == a.shape[1] == b.shape[1]
                use = Depthwise if depthwise else Convolution
                found[weight] = use(a, b.to(value.dtype), geometry, value.shape[2:], self.examples)
            return found

        return gradients

    # Shapes ---------------------------------------------------------------------------------------------------------

    def _split(self, x: Tensor, dim: int) -> Tensor:
        """(examples, rows of each, …) from the dimension that grows."""
        x = x.detach().movedim(dim, 0)
        return (
            x.reshape(self.examples, -1, *x.shape[1:])
            if x.shape[0]
            else x.reshape(self.examples, 0, *x.shape[1:])
        )

    def _positions(self, x: Tensor, batch: int) -> Tensor:
        return x.detach().movedim(batch, 0).reshape(self.examples, -1, x.shape[-1])


def out_of_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operation that gives the same without writing to its argument, where there is one."""
    name = getattr(function, "__name__", "")
    if name.startswith("__i") and name.endswith("__") and hasattr(Tensor, f"__{name[3:]}"):
        return getattr(Tensor, f"__{name[3:]}")  # type: ignore[no-any-return]
    if name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name[:-1]):
        return getattr(Tensor, name[:-1])  # type: ignore[no-any-return]
    return function


def writes(function: Callable[..., Any]) -> bool:
    """Whether an operation writes to its first argument."""
    return function is Tensor.__setitem__ or out_of_place(function) is not function


class Formed(PerExampleGradient):
    """Gradients formed on demand, a few examples at a time."""

    def __init__(self, form: Callable[[int, int], Tensor], examples: int) -> None:
        self._form, self.examples = form, examples

    def per_example(self, start: int, stop: int) -> Tensor:
        """Formed now."""
        return self._form(start, stop)
