"""HTML with everything escaped: elements, tables, and the frame of a section."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

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


def table(
    header: Sequence[Content], rows: Iterable[Sequence[Content]], caption: str, *, kind: str | None = None
) -> Markup:
    """A table that scrolls inside its own frame where it is too wide. The first cell of a row names it."""
    body = [
        element("tr", element("th", first, scope="row"), [element("td", cell) for cell in rest])
        for first, *rest in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", [element("th", cell, scope="col") for cell in header])),
            element("tbody", body),
            class_=kind,
        ),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex=0,
    )


def facts(rows: Iterable[tuple[str, Content]]) -> Markup:
    """Named figures, one under the other."""
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in rows]
    return element("dl", pairs, class_="facts")


def bar(share: float, style: int = 1) -> Markup:
    """A share as a bar; the figure stands beside it in words."""
    return element(
        "svg",
        element("rect", class_="track", width=100, height=8, rx=2),
        element("rect", class_=f"fill c{style}", width=100 * min(max(share, 0.0), 1.0), height=8, rx=2),
        viewBox="0 0 100 8",
        class_="bar",
        aria_hidden="true",
        preserveAspectRatio="none",
    )


def listed(items: Iterable[Content]) -> Markup:
    """A plain list."""
    return element("ul", [element("li", item) for item in items])


def section(key: str, title: str, level: int, *content: Content) -> Markup:
    """A part of the page that can be linked to."""
    return element(
        "section",
        element(f"h{level}", title, id=f"{key}-title"),
        *content,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def subheading(title: str, level: int) -> Markup:
    """A heading within a section."""
    return element(f"h{level + 1}", title)


def tile(name: str, value: Content, detail: Content = None) -> Markup:
    """One figure, large."""
    return element(
        "div",
        element("dt", name),
        element("dd", element("span", value, class_="value"), element("span", detail, class_="detail")),
        class_="tile",
    )


def tiles(items: list[Markup]) -> Markup:
    """A row of tiles."""
    return element("dl", items, class_="tiles")


def grid(*content: Content) -> Markup:
    """Figures side by side where there is room."""
    return element("div", *content, class_="grid")


def note(*content: Content) -> Markup:
    """A remark in small print."""
    return element("p", *content, class_="note")
