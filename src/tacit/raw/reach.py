"""Everything that a model, a loss or a data set holds: attributes, containers, closures, bound objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

import numpy as np
from torch import nn

MOST_OBJECTS = 100_000
LARGEST_CONTAINER = 10_000
"""Containers with more entries are taken for data: nothing in them is looked at."""

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type, ModuleType, ReferenceType)
_FRAMEWORKS = (
    "tacit",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "torch.distributed",
    "logging",
    "threading",
    "concurrent",
)
"""Packages whose own objects (trainers, shards, loggers, locks) are no part of a model even where it refers to them."""


def reachable(roots: Mapping[str, Any], *, but: tuple[type, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every object that can be reached, once, with a name such as ``encoder.cache`` for people to read.

    Objects of the types ``but`` are left out, with what only they hold. What a function finds in its module's global
    names is not followed; ``used_globals`` gives those.
    """
    waiting = deque(roots.items())
    seen: set[int] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        name, thing = waiting.popleft()
        if isinstance(thing, (*_PLAIN, *but)) or id(thing) in seen:
            continue
        seen.add(id(thing))
        yield name, thing
        waiting.extend(_parts(name, thing))


def used_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The global objects that a function's code names."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _parts(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict | list | tuple | set | frozenset | deque):
        if len(thing) > LARGEST_CONTAINER:
            return
        if isinstance(thing, dict):
            yield from ((_inside(name, key), value) for key, value in list(thing.items()))
        else:
            yield from ((name, value) for value in list(thing))
    elif isinstance(thing, FunctionType):
        for variable, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            yield f"{name}.{variable}", cell
        yield name, thing.__defaults__
        yield name, thing.__kwdefaults__
        package = thing.__globals__.get("__name__", "").partition(".")[0]
        if package != "torch":  # which leaves marks on its own functions
            yield name, thing.__dict__
    elif isinstance(thing, CellType):
        try:
            yield name, thing.cell_contents
        except ValueError:  # not yet filled
            return
    elif isinstance(thing, MethodType):
        yield name, thing.__self__
        yield name, thing.__func__
    elif isinstance(thing, partial):
        yield from ((name, part) for part in (thing.func, thing.args, thing.keywords))
    elif isinstance(thing, BuiltinFunctionType | np.ndarray):
        return
    elif not type(thing).__module__.startswith(_FRAMEWORKS) or isinstance(thing, nn.Module):
        attributes = getattr(thing, "__dict__", None)
        if isinstance(attributes, dict):
            yield name, attributes


_ORGANS = ("_parameters", "_buffers", "_modules")


def _inside(name: str, key: Any) -> str:
    """A part's name as people write it: the dictionaries in which modules keep their parts are left out."""
    if key in _ORGANS:
        return name
    return f"{name}.{key}" if name else str(key)
