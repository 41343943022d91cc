"""Patterns of parameter names: few, and matching nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from tacit.errors import ArgumentError
from tacit.support.support import trainable_parameters


def vectors(model: nn.Module) -> tuple[str, ...]:
    """Patterns of exactly the trainable parameters with one dimension: biases, and the scales and shifts of norms."""
    return _of(model, lambda name, parameter: parameter.dim() == 1)


def biases(model: nn.Module) -> tuple[str, ...]:
    """Patterns of exactly the trainable parameters called bias; the shifts of norms are among them."""
    return _of(model, lambda name, parameter: name.rpartition(".")[2] == "bias")


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters that match a pattern; refuse a pattern that matches none."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ArgumentError(
                f"No parameter matches the pattern {pattern!r} to freeze; there are {_some(names)}."
            )
        for name in found:
            model.get_parameter(name).requires_grad_(False)


def check_head(model: nn.Module, patterns: Sequence[str]) -> None:
    """Refuse a pattern of the head that matches no trainable parameter."""
    names = list(trainable_parameters(model))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ArgumentError(
                f"No trainable parameter matches the head's pattern {pattern!r}; there are {_some(names)}."
            )


def _of(model: nn.Module, wanted: Callable[[str, nn.Parameter], bool]) -> tuple[str, ...]:
    parameters = trainable_parameters(model)
    chosen = [name for name, parameter in parameters.items() if wanted(name, parameter)]
    return covering(chosen, [name for name in parameters if name not in chosen])


def covering(names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Few patterns that together match all ``names`` and none of ``others``."""
    patterns: list[str] = []
    for name in names:
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            allowed = [p for p in _candidates(name) if not any(fnmatchcase(other, p) for other in others)]
            patterns.append(max(allowed, key=lambda p: sum(fnmatchcase(n, p) for n in names)))
    return tuple(patterns)


def _candidates(name: str) -> Iterator[str]:
    """From the most general pattern to the name itself: the last parts alone, then numbers replaced."""
    parts = name.split(".")
    for kept in range(1, len(parts)):
        yield ".".join(["*", *parts[-kept:]])
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    for count in range(len(numbers), 0, -1):
        yield ".".join("*" if place in numbers[:count] else part for place, part in enumerate(parts))
    yield name


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown}, … ({len(names)} in all)"
