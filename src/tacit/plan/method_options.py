"""The options of all methods together, as the command line and configuration files offer them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from types import MappingProxyType, NoneType
from typing import Literal, get_origin

from tacit.option_fields import Option, alternatives, options_of
from tacit.plan.methods import METHODS


@functools.cache
def method_options() -> Mapping[str, Option]:
    """Every option that some method has, by name.

    An option of several methods takes what any of them takes. Its text names the methods where only a few have it,
    or where it means something else for some.
    """
    found: dict[str, dict[str, Option]] = {}
    for name, method in METHODS.items():
        for key, one in options_of(method).items():
            found.setdefault(key, {})[name] = one
    return MappingProxyType({key: _merged(key, by_method) for key, by_method in found.items()})


def _merged(key: str, by_method: Mapping[str, Option]) -> Option:
    kinds = dict.fromkeys(
        tuple[str, ...] if kind == Sequence[str] else kind
        for one in by_method.values()
        for kind in alternatives(one.kind)
        if kind is not NoneType
    )
    words = tuple(dict.fromkeys(word for one in by_method.values() for word in one.words))
    parts = [kind for kind in kinds if get_origin(kind) is not Literal]
    # A word beside a number is read with it; a word alone is a text, which the method itself checks.
    parts += [Literal.__getitem__(words)] if words and parts else [] if parts else [str]
    texts, defaults = _grouped(by_method, lambda one: one.help), _grouped(by_method, _shown)
    few = len(by_method) <= 3
    text = " ".join(
        f"{', '.join(names)}: {text}" if few or len(texts) > 1 else text for text, names in texts.items()
    )
    shown = "; ".join(
        f"{default} ({', '.join(names)})" if len(defaults) > 1 else default
        for default, names in defaults.items()
        if default
    )
    flag = next(iter(by_method.values())).flag
    return Option(key, functools.reduce(operator.or_, parts), text, None, flag, shown or None, words)


def _grouped(by_method: Mapping[str, Option], of: Callable[[Option], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, one in by_method.items():
        groups.setdefault(of(one), []).append(name)
    return groups


def _shown(one: Option) -> str:
    if one.shown is not None:
        return one.shown
    if isinstance(one.default, bool) and one.flag is not None:
        return one.flag.split("/")[not one.default].removeprefix("--")
    if one.default in (None, MISSING):
        return ""
    return f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
