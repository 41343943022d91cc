"""Which rule serves which module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Rule:
    """A layer's forward pass on watched operations.

    ``owns_children`` says that the rule computes with its children's parameters itself, never calling the children.
    ``always`` says that the layer runs by its rule even where none of its coordinates is active.
    """

    forward: Callable[..., Any]
    layer: type[nn.Module] | str
    owns_children: bool
    always: bool


_by_type: dict[type[nn.Module], Rule] = {}
_by_name: dict[str, Rule] = {}


def register(
    *layers: type[nn.Module] | str, owns_children: bool = False, always: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the rule of the given layer types, named by class or by 'module.Class'."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for layer in layers:
            rule = Rule(function, layer, owns_children, always)
            if isinstance(layer, str):
                _by_name[layer] = rule
            else:
                _by_type[layer] = rule
        return function

    return decorate


def find(module: nn.Module) -> Rule | None:
    """The rule of a module: that of its class, or of a parent class whose ``forward`` it has not overridden."""
    for layer in type(module).__mro__:
        rule = _by_type.get(layer) or _by_name.get(f"{layer.__module__}.{layer.__qualname__}")
        if rule is not None and type(module).forward is layer.forward:  # type: ignore[attr-defined]
            return rule
    return None
