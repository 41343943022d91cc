"""Parameters that no rule serves are followed through the operations that use them.

A parameter may be used as it is (``x * self.scale``), or after operations on parameters alone (a normalised weight, a
table of relative positions, a penalty). What such operations make is computed once, with a graph that leads back to
the parameters. Where one of these *shared* values meets examples, that one operation is asked for the gradient of each
example, and the graph carries it back. So the cost is that of the operations that parameters take part in, whatever
else their module does, and random draws elsewhere in it do not matter.

Which operation is of which kind is learnt from two passes with batches of different sizes: what grows belongs to
examples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tacit.errors import ModelError, Unseen
from tacit.raw.gradients import Direct, PerExampleGradient, Several
from tacit.raw.recorder import Recorder
from tacit.raw.refusals import selected
from tacit.raw.replay import HOLD, Formed, Growth, Operation, writes

_UNCONNECTED = {Tensor.detach, Tensor.data.__get__, torch.detach}  # type: ignore[attr-defined]

Key = tuple[str, tuple[str, ...], tuple[int, ...]]
"""An operation's name, the names of the parameters that it concerns, and the number of its arguments' dimensions."""


@dataclass
class Operations:
    """What was learnt about the operations that parameters take part in: by key, in the order of the calls."""

    known: dict[Key, list[Growth]] = field(default_factory=dict)

    def joined(self, other: Operations) -> Operations:
        """What was learnt from two looks, at passes that took different paths."""
        for key in self.known.keys() & other.known.keys():
            mine, theirs = self.known[key], other.known[key]
            if mine[: len(theirs)] != theirs[: len(mine)]:
                raise ModelError(
                    f"{', '.join(key[1][:3])}: the operation {key[0]} uses this parameter in another way for other "
                    'examples; train with isolation="construction".'
                )
        longest = {
            key: max(self.known.get(key, []), other.known.get(key, []), key=len)
            for key in {**self.known, **other.known}
        }
        return Operations(longest)

    def of(self, key: Key, call: int) -> Growth:
        """What grows in a call."""
        known = self.known.get(key, [])
        if call >= len(known):
            raise self.unseen(key)
        return known[call]

    @staticmethod
    def unseen(key: Key) -> Unseen:
        """An operation that no look has met."""
        return Unseen(
            f"{', '.join(key[1][:3])}: the operation {key[0]} was not part of the pass when the model was first looked "
            "at, so it is not known which of its results belong to which example; use the same operations in every "
            'pass, or train with isolation="construction".'
        )


@dataclass
class _Seen:
    """One operation in a pass that only looks at shapes.

    ``sources`` tells for every argument that may be shared which parameter it is, or which operation made it.
    """

    name: str
    inputs: tuple[tuple[int, ...] | None, ...]
    numbers: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, ...], ...]
    sources: dict[int, str | int]


@dataclass
class Sightings:
    """The operations of a pass that only looks at shapes, in order."""

    seen: list[_Seen] = field(default_factory=list)

    @staticmethod
    def compare(small: Sightings, large: Sightings, sizes: tuple[int, int]) -> Operations:
        """What grows in which operation, from passes with two batch sizes."""
        found = Operations()
        if [(s.name, s.sources) for s in small.seen] != [(s.name, s.sources) for s in large.seen]:
            names = sorted({x for s in small.seen for x in s.sources.values() if isinstance(x, str)})
            raise ModelError(
                f"{', '.join(names[:3])}: how many operations use this parameter depends on the number of examples; "
                'put it into a layer of its own, or train with isolation="construction".'
            )
        roots: dict[int, frozenset[str]] = {}  # of the operations that make something shared
        for number, (a, b) in enumerate(zip(small.seen, large.seen, strict=True)):
            shared = {
                place: frozenset([source]) if isinstance(source, str) else roots[source]
                for place, source in a.sources.items()
                if isinstance(source, str) or source in roots
            }
            if not shared:
                continue
            key = (
                a.name,
                tuple(sorted(frozenset[str]().union(*shared.values()))),
                tuple(-1 if x is None else len(x) for x in a.inputs),
            )
            growing = partial(_growing, key, sizes=sizes)
            growth = Growth(
                tuple(
                    None if x is None or y is None or place in shared else growing(x, y)
                    for place, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=True))
                ),
                frozenset(i for (i, x), (_, y) in zip(a.numbers, b.numbers, strict=True) if x != y),
                tuple(growing(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)),
                tuple(len(x) for x in a.outputs),
            )
            if growth.shared and any(dim is not None for dim in growth.inputs):
                raise ModelError(
                    f"{', '.join(key[1][:3])}: the operation {a.name} makes one value of several examples and this "
                    "parameter; keep the examples apart."
                )
            if growth.shared:
                roots[number] = frozenset(key[1])
            found.known.setdefault(key, []).append(growth)
        return found


def _growing(key: Key, small: tuple[int, ...], large: tuple[int, ...], sizes: tuple[int, int]) -> int | None:
    grown = [i for i, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if not grown and len(small) == len(large):
        return None
    if len(grown) == 1 and small[grown[0]] * sizes[1] == large[grown[0]] * sizes[0]:
        return grown[0]
    raise selected(
        f"The operation {key[0]} of {', '.join(key[1][:3])}",
        f"is given shape {small} for {sizes[0]} examples and {large} for {sizes[1]}",
    )


@dataclass(eq=False)
class _Shared:
    """A parameter, or what operations on parameters alone made: the value that the model sees, and its graph."""

    value: Tensor
    graph: Tensor
    roots: tuple[str, ...]
    parameter: nn.Parameter | None = None
    origin: str | int = -1


class Following(TorchFunctionMode):
    """Follows parameters (by name) through one pass; ``ways`` are sightings to add to, or what was learnt from them."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], recorder: Recorder, ways: Operations | Sightings
    ) -> None:
        super().__init__()
        self._recorder, self._ways = recorder, ways
        self._leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        self._parameters = dict(parameters)
        self._shared: dict[int, _Shared] = {
            id(p): _Shared(p, self._leaves[name], (name,), p, name) for name, p in parameters.items()
        }
        self._calls: dict[Key, int] = defaultdict(int)
        self._uses: dict[_Shared, list[PerExampleGradient]] = defaultdict(list)
        self._pausing = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context operations are not followed: a rule sees to them."""
        self._pausing += 1
        try:
            yield
        finally:
            self._pausing -= 1

    def spread(self, x: Tensor, output: Tensor) -> Tensor:
        """A copy of ``x`` for every row, made by the caller; followed if ``x`` is shared."""
        shared = self._shared.get(id(x))
        if shared is None or isinstance(self._ways, Sightings):
            return output
        rows = self._recorder.rows // self._recorder.examples

        def on_gradient(b: Tensor) -> None:
            parts = b.reshape(self._recorder.examples, rows, *x.shape).sum(1)
            self._attribute(shared, Direct(parts.to(x.dtype)))

        return self._watch(output, [shared], on_gradient)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._pausing or (
            not self._touched(args) and not (kwargs and self._touched(tuple(kwargs.values())))
        ):
            return func(*args, **kwargs)
        if not torch.is_grad_enabled() or func in _UNCONNECTED:
            return func(*args, **kwargs)
        return self._follow(func, args, kwargs)

    def _touched(self, args: Sequence[Any]) -> bool:
        for arg in args:
            if id(arg) in self._shared:
                return True
            if isinstance(arg, tuple | list) and arg and self._touched(arg):
                return True
        return False

    def _follow(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            with self:
                return _attention(*args, **kwargs)
        leaves, structure = pytree.tree_flatten((_plain(tuple(args)), kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and id(leaf) in self._shared]
        shared = [self._shared[id(leaves[i])] for i in places]
        if isinstance(self._ways, Sightings):
            return self._sight(self._ways, func, args, kwargs, leaves, places, shared)
        roots = tuple(sorted({root for s in shared for root in s.roots}))
        key = (_name(func), roots, tuple(x.dim() if isinstance(x, Tensor) else -1 for x in leaves))
        if key not in self._ways.known:
            output = func(*args, **kwargs)
            if not _results(func, args, output):
                return output  # a question, such as the shape
        growth = self._ways.of(key, self._calls[key])
        self._calls[key] += 1
        if growth.shared:
            return self._made(func, leaves, structure, places, shared, roots)
        operation = Operation(
            func,
            [_kept(leaf, copied=i == 0 and writes(func)) for i, leaf in enumerate(leaves)],
            structure,
            places,
            growth,
            self._recorder.examples,
            _autocast(leaves),
        )
        output = func(*args, **kwargs)
        if [x.dim() for x in _results(func, args, output)] != list(growth.dimensions):
            raise self._ways.unseen(key)
        return self._met(operation, shared, args[0] if func is Tensor.__setitem__ else output)

    def _sight(
        self,
        sightings: Sightings,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        leaves: list[Any],
        places: list[int],
        shared: list[_Shared],
    ) -> Any:
        """Only look at shapes. Whatever comes of a parameter is taken for shared until it is known what grows."""
        output = func(*args, **kwargs)
        results = _results(func, args, output)
        if not results:
            return output
        sightings.seen.append(
            _Seen(
                _name(func),
                tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in leaves),
                tuple((i, x) for i, x in enumerate(leaves) if type(x) is int),
                tuple(tuple(x.shape) for x in results),
                {i: own.origin for i, own in zip(places, shared, strict=True)},
            )
        )
        for x in results:
            if id(x) not in self._shared or self._shared[id(x)].parameter is None:
                self._shared[id(x)] = _Shared(x, x, (), origin=len(sightings.seen) - 1)
        return output

    def _made(
        self,
        func: Any,
        leaves: list[Any],
        structure: Any,
        places: list[int],
        shared: list[_Shared],
        roots: tuple[str, ...],
    ) -> Any:
        """An operation on parameters alone: its value, and a graph that leads back."""
        given = list(leaves)
        for place, own in zip(places, shared, strict=True):
            given[place] = own.graph.clone() if place == 0 and writes(func) else own.graph
        args, kwargs = pytree.tree_unflatten(given, structure)
        with torch.enable_grad():
            made = func(*args, **kwargs)
        if func is Tensor.__setitem__ or (writes(func) and 0 in places):
            target = self._shared[id(leaves[0])] if 0 in places else None
            if target is None:
                raise ModelError(
                    f"{', '.join(roots[:3])}: {_name(func)} writes this parameter into a tensor in place; make a new "
                    "tensor instead (torch.cat, torch.where)."
                )
            target.graph = args[0] if func is Tensor.__setitem__ else made
            with torch.no_grad():
                leaves[0].copy_(target.graph)
            return None if func is Tensor.__setitem__ else leaves[0]

        def seen(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.requires_grad:
                return x
            same = [own for own in shared if own.graph is x]
            if same:
                return same[0].value
            value = x.detach()
            self._shared[id(value)] = _Shared(value, x, roots)
            return value

        return pytree.tree_map(seen, made)

    def _met(self, operation: Operation, shared: list[_Shared], output: Any) -> Any:
        """An operation on parameters and examples: each example's gradients are found when its output's have come."""
        leaves, structure = pytree.tree_flatten(output)
        where = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        parts = [leaves[i] for i in where]
        places = [i for i, x in enumerate(parts) if x.is_floating_point() or x.is_complex()]
        formula = operation.formula() if len(parts) == len(places) == 1 else None
        if formula is not None:

            def on_gradient(b: Tensor) -> None:
                found = formula(b)
                for place, own in zip(operation.places, shared, strict=True):
                    if place in found and self._is_active(own):
                        self._attribute(own, found[place])

            parts[0] = self._watch(parts[0], shared, on_gradient)
        else:
            received: dict[int, Tensor] = {}
            for place in places:
                if operation.growth.outputs[place] is not None:
                    parts[place] = self._watch(parts[place], shared, partial(received.__setitem__, place))
            self._recorder.defer([], partial(self._replay, operation, shared, received))
        for i, part in zip(where, parts, strict=True):
            leaves[i] = part
        result = pytree.tree_unflatten(leaves, structure)
        return None if operation.function is Tensor.__setitem__ else result

    def _replay(self, operation: Operation, shared: list[_Shared], received: dict[int, Tensor]) -> None:
        if not received:
            return
        total = operation.examples * sum(own.value.numel() for own in shared)
        if total <= HOLD:
            with self.paused():
                found = operation.replayed(received, 0, operation.examples)
            for own, gradients in zip(shared, found, strict=True):
                if self._is_active(own):
                    self._attribute(own, Direct(gradients))
            return
        for number, own in enumerate(shared):
            if self._is_active(own):

                def form(start: int, stop: int, number: int = number) -> Tensor:
                    with self.paused():
                        return operation.replayed(received, start, stop)[number]

                self._attribute(own, Formed(form, operation.examples))

    def _watch(
        self, output: Tensor, shared: Sequence[_Shared], on_gradient: Callable[[Tensor], None]
    ) -> Tensor:
        roots = dict.fromkeys(root for own in shared for root in own.roots)
        return self._recorder.watch(output, [self._parameters[root] for root in roots], on_gradient)

    def _attribute(self, shared: _Shared, use: PerExampleGradient) -> None:
        """Gradients of a parameter, or of what was made of parameters; the latter are carried back at the end."""
        if shared.parameter is not None:
            self._recorder.add(shared.parameter, use)
            return
        if not self._uses:
            self._recorder.defer([], self._carry_back)
        self._uses[shared].append(use)

    def _is_active(self, shared: _Shared) -> bool:
        return any(self._recorder.is_active(self._parameters[root]) for root in shared.roots)

    def _carry_back(self) -> None:
        while self._uses:
            shared, uses = self._uses.popitem()
            use = uses[0] if len(uses) == 1 else Several(uses)
            roots = [root for root in shared.roots if self._recorder.is_active(self._parameters[root])]
            each = shared.value.numel() + sum(self._leaves[root].numel() for root in roots)
            if use.examples * each <= HOLD:
                for root, gradients in zip(
                    roots, self._carried(shared, roots, use.per_example(0, use.examples)), strict=True
                ):
                    self._recorder.add(self._parameters[root], Direct(gradients))
                continue
            for root in roots:

                def form(
                    start: int, stop: int, root: str = root, own: Any = shared, use: Any = use
                ) -> Tensor:
                    return self._carried(own, [root], use.per_example(start, stop))[0]

                self._recorder.add(self._parameters[root], Formed(form, use.examples))

    def _carried(self, shared: _Shared, roots: Sequence[str], gradients: Tensor) -> list[Tensor]:
        """The gradients of examples for a shared value, carried back to parameters."""
        leaves = [self._leaves[root] for root in roots]
        gradients = gradients.to(shared.graph.dtype)
        count = len(gradients)
        with self.paused(), torch.enable_grad():
            found: list[Tensor | None]
            back = partial(torch.autograd.grad, shared.graph, leaves, retain_graph=True, allow_unused=True)
            try:
                found = list(back(grad_outputs=gradients, is_grads_batched=True))
            except (RuntimeError, NotImplementedError):
                each = [back(grad_outputs=g) for g in gradients]
                found = [
                    None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True)
                ]
        return [
            leaf.new_zeros(count, *leaf.shape) if g is None else g.detach()
            for g, leaf in zip(found, leaves, strict=True)
        ]


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention in steps, of which each can be followed, and of which only dropout draws."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    logits = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask
    return F.dropout(torch.softmax(logits, -1), dropout_p) @ v


def _results(func: Any, args: Sequence[Any], output: Any) -> list[Tensor]:
    found = pytree.tree_leaves(args[0] if func is Tensor.__setitem__ else output)
    return [x for x in found if isinstance(x, Tensor)]


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    return name if name != "__get__" else f"{func.__self__.__name__}"


def _plain(args: Any) -> Any:
    """Arguments whose sizes are tuples, which can be looked into."""
    if isinstance(args, torch.Size):
        return tuple(args)
    return type(args)(_plain(a) for a in args) if type(args) in (tuple, list) else args


def _kept(leaf: Any, *, copied: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone() if copied else leaf.detach()


def _autocast(leaves: Sequence[Any]) -> tuple[str, torch.dtype, bool]:
    device = next(leaf.device.type for leaf in leaves if isinstance(leaf, Tensor))
    return device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
