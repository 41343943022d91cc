"""Watching a model for one pass: its layers run by their rules, its weights receive no gradient of their own.

The model is not wrapped. For the time of one pass each layer with an active coordinate (and each whose rule is for
always) has its ``forward`` replaced on the instance, and all parameters are frozen so that autograd computes output
gradients only and stops below the lowest layer that needs them. Afterwards everything is as before, also if the pass
fails. Compilers and reentrant checkpoints, which would hide the layers, step aside meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from tacit.raw.fallback import fallback
from tacit.raw.following import Following
from tacit.raw.recorder import Recorder
from tacit.raw.row_tables import RowTable
from tacit.raw.rules import Rule, find
from tacit.raw.watched_layer import Layout, WatchedLayer
from tacit.support import Block, Kind


@dataclass(frozen=True)
class Ways:
    """How parameters are served where the rules of their layers alone do not do; by name.

    ``followed`` are used outside the layers that own them and are followed there too; the layers of ``unruled`` run
    without their rules, all their uses are followed; ``escaped`` are found by ``torch.func`` over the whole model.
    """

    followed: frozenset[str] = frozenset()
    unruled: frozenset[str] = frozenset()
    escaped: frozenset[str] = frozenset()

    def __le__(self, other: Ways) -> bool:
        return (
            self.followed <= other.followed | other.unruled | other.escaped
            and self.unruled <= other.unruled | other.escaped
            and self.escaped <= other.escaped
        )


class Instrumentation:
    """How each layer of a model is watched under one support.

    ``without_rule`` tells what is not served by a rule, all of it under one name, and for which parameters, ``formed``
    how many numbers these have; ``ran`` names the watched layers that a pass has used. ``tables`` are read row by row.
    """

    def __init__(
        self,
        model: nn.Module,
        support: Mapping[str, Block],
        ways: Ways | None = None,
        tables: Mapping[str, RowTable] | None = None,
    ) -> None:
        ways = ways or Ways()
        self.model = model
        parameters = dict(model.named_parameters())
        self.blocks = {
            id(parameters[name]): block for name, block in support.items() if block.kind is not Kind.SILENT
        }
        self.names = {id(parameters[name]): name for name in support}
        self._tables = {id(parameters[name]): (name, table) for name, table in (tables or {}).items()}
        self.without_rule: dict[str, list[str]] = {}
        self.formed: dict[str, int] = {}
        self.ran: set[str] = set()
        self._bypassed = False
        self._watched: list[tuple[str, nn.Module, Callable[..., Any]]] = []
        self._unruled = {id(parameters[name]) for name in ways.unruled}
        # Silent ones too: which operations are known by which names does not depend on the support.
        self._followed = {name: parameters[name] for name in ways.followed | ways.unruled}
        self._following: Following | None = None
        self._unserved: dict[str, list[str]] = {}
        self._walk(model, "", {id(parameters[name]): name for name in ways.escaped}, set())
        self._name_unserved(parameters)

    def follows(self) -> bool:
        """Whether active parameters are followed through the operations that use them."""
        return any(id(parameter) in self.blocks for parameter in self._followed.values())

    def unused(self) -> frozenset[str]:
        """The watched layers that no pass has used."""
        return frozenset(name for name, _, _ in self._watched) - self.ran

    @contextmanager
    def watching(self, recorder: Recorder, layout: Layout) -> Iterator[None]:
        """Within this context a forward and backward pass of the model is recorded by ``recorder``."""
        flags = [(p, p.requires_grad) for p in self.model.parameters()]
        before = [(module, module.__dict__.get("forward")) for _, module, _ in self._watched]
        fast_attention = torch.backends.mha.get_fastpath_enabled()
        recorder.tables = self._tables
        try:
            # The fused inference path of nn.TransformerEncoderLayer does not call its layers.
            torch.backends.mha.set_fastpath_enabled(False)
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            for name, module, forward in self._watched:
                plain = module.forward
                module.__dict__["forward"] = partial(
                    self._run, module, plain, forward, WatchedLayer(name, recorder, layout)
                )
            with ExitStack() as modes:
                if self.follows():
                    self._following = Following(self._followed, recorder, layout.operations)
                    recorder.on_spread = self._following.spread
                    modes.enter_context(self._following)
                yield
        finally:
            # What was followed leads to the graph of the pass, and the hooks of a graph lead to the recorder.
            self._following = recorder.on_spread = None
            for module, forward_before in before:
                if forward_before is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = forward_before
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
            torch.backends.mha.set_fastpath_enabled(fast_attention)

    def _run(
        self,
        module: nn.Module,
        plain: Callable[..., Any],
        forward: Callable[..., Any],
        layer: WatchedLayer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self._bypassed:
            return plain(*args, **kwargs)
        self.ran.add(layer.name)
        with nullcontext() if self._following is None else self._following.paused():
            return forward(module, layer, *args, **kwargs)

    @contextmanager
    def _bypass(self) -> Iterator[None]:
        self._bypassed = True
        try:
            yield
        finally:
            self._bypassed = False

    def _walk(self, module: nn.Module, name: str, escaped: Mapping[int, str], seen: set[int]) -> None:
        """Choose how the module, then its children, are watched; most not at all where no coordinate is active."""
        if id(module) in seen:
            return
        seen.add(id(module))
        rule = find(module)
        own = dict(module.named_parameters(recurse=rule is not None and rule.owns_children))
        if rule is not None and (_is_changed(module, rule) or self._is_unruled(module, rule)):
            rule = None
        trained = {n: p for n, p in own.items() if id(p) in self.names and id(p) not in escaped}
        active = [n for n, p in trained.items() if id(p) in self.blocks]
        if module is self.model and escaped:
            active = [n for i, n in escaped.items() if i in self.blocks]
            forward = module.__dict__.get("forward") or partial(type(module).forward, module)
            self._watched.append((name, module, partial(_fallback, active, forward, self._bypass)))
        elif rule is not None and (active or rule.always or self._follows(trained.values())):
            self._watched.append((name, module, rule.forward))
        if rule is None or (module is self.model and escaped):
            self._followed.update({self.names[id(p)]: p for p in trained.values()})
            if trained or (module is self.model and escaped):
                shown = f"{name or 'the model itself'} ({type(module).__name__})"
                if find(module) is not None:  # of a type that has one, but used otherwise
                    shown = f"the use of {shown}"
                # By the first name that a tied parameter has.
                known = [self.names[id(p)] for p in trained.values() if id(p) in self.blocks]
                self._unserved[shown] = active if module is self.model and escaped else known
        if rule is not None and rule.owns_children:
            return
        for child_name, child in module.named_children():
            self._walk(child, f"{name}.{child_name}" if name else child_name, escaped, seen)

    def _name_unserved(self, parameters: Mapping[str, nn.Parameter]) -> None:
        active = [name for names in self._unserved.values() for name in names]
        if not active:
            return
        first, count = next(iter(self._unserved)), len(self._unserved)
        plain = first.removeprefix("the use of ")
        # Whatever is active: another support is no reason to say it again.
        shown = first if count == 1 else f"the use of {count} modules, {plain} first,"
        shown = f"T{shown[1:]}" if shown.startswith("the ") else shown
        self.without_rule[shown] = active
        self.formed[shown] = sum(parameters[name].numel() for name in active)

    def _follows(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Whether a layer's parameters are followed elsewhere: then its rule keeps its own use of them apart."""
        return any(self.names[id(p)] in self._followed for p in parameters)

    def _is_unruled(self, module: nn.Module, rule: Rule) -> bool:
        return any(id(p) in self._unruled for p in module.parameters(recurse=rule.owns_children))


def _is_changed(module: nn.Module, rule: Rule) -> bool:
    """Whether a module computes otherwise than its class: another ``forward``, or weights made of parameters."""
    parts = module.modules() if rule.owns_children else [module]
    return any(
        "forward" in part.__dict__
        or "parametrizations" in part._modules
        or any(isinstance(value, Tensor) and _is_read(name) for name, value in part.__dict__.items())
        for part in parts
    )


def _is_read(name: str) -> bool:
    """Whether a torch layer's ``forward`` reads this attribute; any other tensor on it is a note of the user's."""
    return "weight" in name or "bias" in name


def _fallback(
    names: list[str],
    forward: Callable[..., Any],
    bypass: Callable[[], Any],
    module: nn.Module,
    layer: WatchedLayer,
    *args: Any,
    **kwargs: Any,
) -> Any:
    return fallback(module, names, forward, bypass, layer, *args, **kwargs)


class _WithoutReentrance:
    """Stands in for the autograd function of reentrant checkpoints, which computes no gradients on demand.

    The other kind of checkpoint computes the same and saves as much.
    """

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within this context a forward pass runs layer by layer, as it was written."""
    # A model was compiled only if the compiler has been imported, which takes seconds.
    compiler = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    before = torch.utils.checkpoint.CheckpointFunction
    torch.utils.checkpoint.CheckpointFunction = _WithoutReentrance  # type: ignore[misc,assignment]
    try:
        with compiler:
            yield
    finally:
        torch.utils.checkpoint.CheckpointFunction = before  # type: ignore[misc]
