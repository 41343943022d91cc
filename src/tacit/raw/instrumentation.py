"""Watching a model for one pass: its layers run by their rules, its weights receive no gradient of their own.

The model is not wrapped. For the time of one pass each layer with an active coordinate (and each whose rule is for
always) has its ``forward`` replaced on the instance, and all parameters are frozen so that autograd computes output
gradients only and stops below the lowest layer that needs them. Afterwards everything is as before, also if the pass
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from tacit.raw.fallback import fallback
from tacit.raw.recorder import Recorder
from tacit.raw.rules import find
from tacit.raw.watched_layer import Layout, WatchedLayer
from tacit.support import Block, Kind


class Instrumentation:
    """How each layer of a model is watched under one support.

    ``escaped`` names parameters that are used outside the module that owns them; they are found by ``torch.func``
    over the whole model. ``without_rule`` tells which modules are served by ``torch.func``, and for what.
    """

    def __init__(
        self, model: nn.Module, support: Mapping[str, Block], escaped: frozenset[str] = frozenset()
    ) -> None:
        self.model = model
        parameters = dict(model.named_parameters())
        self.blocks = {
            id(parameters[name]): block for name, block in support.items() if block.kind is not Kind.SILENT
        }
        self.names = {id(parameters[name]): name for name in support}
        self.without_rule: dict[str, list[str]] = {}
        self._bypassed = False
        self._watched: list[tuple[str, nn.Module, Callable[..., Any]]] = []
        self._walk(model, "", {id(parameters[name]): name for name in escaped}, set())

    @contextmanager
    def watching(self, recorder: Recorder, layout: Layout) -> Iterator[None]:
        """Within this context a forward and backward pass of the model is recorded by ``recorder``."""
        flags = [(p, p.requires_grad) for p in self.model.parameters()]
        before = [(module, module.__dict__.get("forward")) for _, module, _ in self._watched]
        fast_attention = torch.backends.mha.get_fastpath_enabled()
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
            yield
        finally:
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
        # A forward set on the instance is not the one that the rule of its class computes.
        rule = None if "forward" in module.__dict__ else find(module)
        own = module.named_parameters(recurse=rule is not None and rule.owns_children)
        active = [n for n, p in own if id(p) in self.blocks and id(p) not in escaped]
        if module is self.model and escaped:
            active = [*active, *(n for i, n in escaped.items() if i in self.blocks)]
            rule = None
        if rule is not None and (active or rule.always):
            self._watched.append((name, module, rule.forward))
        elif active:
            self.without_rule[f"{name or 'the model itself'} ({type(module).__name__})"] = active
            forward = module.__dict__.get("forward") or partial(type(module).forward, module)
            self._watched.append((name, module, partial(_fallback, active, forward, self._bypass)))
        if rule is not None and rule.owns_children:
            return
        for child_name, child in module.named_children():
            self._walk(child, f"{name}.{child_name}" if name else child_name, escaped, seen)


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
