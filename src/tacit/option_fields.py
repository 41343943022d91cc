"""Options as fields of dataclasses: default, type and words stand in one place.

The command line, configuration files and the reference are generated from these fields.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import MISSING
from typing import Any


def option(text: str, default: Any = MISSING, *, flag: str | None = None, shown: str | None = None) -> Any:
    """A field of a dataclass that is an option.

    ``text`` says what it does. ``flag`` is its name on the command line where that is not the field's own, such as
    ``--grey/--colour``. ``shown`` describes a default that is decided later, such as "1e-5 or less".
    """
    metadata = {"help": text, "flag": flag, "shown": shown}
    if default is MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Option:
    """What a field says about itself. ``default`` is ``MISSING`` where there is none, ``words`` are those it takes."""

    name: str
    kind: Any
    help: str
    default: Any = None
    flag: str | None = None
    shown: str | None = None
    words: tuple[str, ...] = ()


def options_of(cls: type[Any]) -> dict[str, Option]:
    """The options of a dataclass by name, with their types evaluated."""
    kinds = typing.get_type_hints(cls)
    return {
        field.name: Option(
            field.name,
            kinds[field.name],
            field.metadata.get("help", ""),
            field.default,
            field.metadata.get("flag"),
            field.metadata.get("shown"),
            words_of(kinds[field.name]),
        )
        for field in dataclasses.fields(cls)
    }


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that a union allows, one after the other; nested unions are laid open."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(dict.fromkeys(one for part in typing.get_args(kind) for one in alternatives(part)))
    return (kind,)


def words_of(kind: Any) -> tuple[str, ...]:
    """The words that a type allows, if it allows some only."""
    return tuple(
        word
        for one in alternatives(kind)
        if typing.get_origin(one) is typing.Literal
        for word in typing.get_args(one)
    )
