"""Tables, and small drawings that stand in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tacit.report.markup import Content, Markup, element
from tacit.report.scale import Scale


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


def interval(value: float, spread: float | None, scale: Scale, style: int = 1) -> Markup:
    """A dot with a bar of one ``spread`` on either side, on a scale that a column shares."""
    at = scale(value)
    reach = None
    if spread is not None:
        low, high = scale(value - spread), scale(value + spread)
        reach = element("line", class_=f"bar c{style}", x1=low, x2=high, y1=8, y2=8)
    return element(
        "svg",
        [
            element("line", class_="grid", x1=scale(tick), x2=scale(tick), y1=0, y2=16)
            for tick in scale.ticks(4)
        ],
        reach,
        element("circle", class_=f"dot c{style}", cx=at, cy=8, r=4),
        viewBox=f"0 0 {scale.end + 6:g} 16",
        class_="interval",
        aria_hidden="true",
    )


def listed(items: Iterable[Content]) -> Markup:
    """A plain list."""
    return element("ul", [element("li", item) for item in items])
