"""What the sections share: headings with addresses, and tiles with one figure each."""

from __future__ import annotations

from tacit.report.markup import Content, Markup, element


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
