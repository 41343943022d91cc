"""HTML in which every text is escaped unless it was made here."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"meta", "link", "input", "br", "col", "path", "line", "rect", "circle", "polygon"})


class Markup(str):
    """A piece of finished HTML; any other string is text."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]
Value = str | int | float | bool | None


def escaped(text: object) -> Markup:
    """``text`` with nothing in it that HTML would read as markup, in content and in quoted attributes."""
    if isinstance(text, Markup):
        return text
    valid = str(text).encode("utf-8", "replace").decode()
    return Markup(html.escape(valid, quote=True))


def joined(*content: Content) -> Markup:
    """Pieces in a row: markup as it is, text escaped, nothing for ``None``."""
    return Markup("".join(_flat(content)))


def _flat(content: Iterable[Content]) -> Iterable[str]:
    for piece in content:
        if piece is None:
            continue
        if isinstance(piece, str | int | float):
            yield escaped(piece)
        else:
            yield from _flat(piece)


def element(tag: str, *content: Content, **attributes: Value) -> Markup:
    """An element. In names of attributes ``_`` stands for ``-`` and one at the end is dropped (``class_``).

    Attributes that are ``None`` or ``False`` are left out; ``True`` is an attribute without a value.
    """
    shown = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID and not content:
        return Markup(f"<{tag}{shown}/>" if tag in _SHAPES else f"<{tag}{shown}>")
    return Markup(f"<{tag}{shown}>{joined(*content)}</{tag}>")


_SHAPES = frozenset({"path", "line", "rect", "circle", "polygon"})


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = coordinate(value) if isinstance(value, float) else value
    return f' {name}="{escaped(text)}"'


def coordinate(value: float) -> str:
    """A number for a drawing: two decimals are a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.005 else "0"
