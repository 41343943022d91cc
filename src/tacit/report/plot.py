"""Plots as SVG, with axes that suit their numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tacit.report.markup import Content, Markup, coordinate, element, joined, table


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` … ``high`` to ``start`` … ``end`` on paper, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; one beyond the scale lies at its end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values within the scale, at most ``most`` of them."""
        return _decades(self.low, self.high, most) if self.log else ticks(self.low, self.high, most)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between ``low`` and ``high``, at most ``most`` of them."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = math.floor(math.log10(span / most)) - 1
    while True:
        for factor in (1, 2, 5):
            step = factor * 10.0**power
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first + 1 <= most:
                digits = max(0, -power)
                return [round(n * step, digits) for n in range(first, last + 1)]
        power += 1


def _decades(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first + 1) // most))
    return [10.0**power for power in range(last, first - 1, -every)][::-1]


def padded(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """The range with some air above and below; a range of no width gets some."""
    span = high - low
    air = span * share if span > 0 else max(abs(high), 1.0) * 0.05
    return low - air, high + air


def number(value: float, digits: int = 4) -> str:
    """A figure for people: so many significant digits, thousands by comma, an infinite one as ∞."""
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        raised = "10" + str(int(power)).translate(_RAISED)
        return raised if mantissa == "1" else f"{mantissa.replace('-', '−')}\u00a0·\u00a0{raised}"
    if float(value).is_integer():
        return f"{int(value):,}".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}".rstrip("0").rstrip(".").replace("-", "−")


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def share(value: float, digits: int = 1) -> str:
    """A share as a percentage."""
    return "not defined" if math.isnan(value) else f"{100 * value:.{digits}f} %".replace("-", "−")


WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 34, 48
STYLES = 6
_POINTS = 160
_ROWS = 24
_DOTTED = 32

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One line. ``spread`` is the half-width of a band around it; ``style`` its colour; values may be NaN."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int = 1
    dashed: bool = False
    spread: Sequence[float] | None = None
    bars: bool = False
    """draw ``spread`` as bars on points instead of a band"""


@dataclass(frozen=True)
class Mark:
    """A line across the plot at one value, with a name in the legend."""

    at: float
    name: str
    style: int = 2
    dashed: bool = True
    key: str | None = None


@dataclass(frozen=True)
class Dot:
    """One point that stands out, with a name in the legend."""

    x: float
    y: float
    name: str
    style: int
    key: str


@dataclass(frozen=True)
class Plot:
    """What to draw. ``summary`` says in words what the picture shows: it is the text alternative."""

    title: str
    summary: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    verticals: Sequence[Mark] = ()
    horizontals: Sequence[Mark] = ()
    dots: Sequence[Dot] = ()
    borders: Sequence[tuple[float, str]] = field(default=())
    """where one stretch ends and what the one before it is called"""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_ticks: Sequence[float] | None = None
    x_format: Format = number
    y_format: Format = number
    log_x: bool = False
    note: Content = None


def draw(plot: Plot, key: str) -> Markup:
    """The figure. ``key`` is unique on the page."""
    series = [_thinned(line) for line in plot.series]
    x, y = scales(plot)
    marks: list[Mark | Dot] = [*plot.horizontals, *plot.verticals, *plot.dots]
    drawing = element(
        "svg",
        _frame(plot, x, y),
        [_border(at, name, x, y) for at, name in plot.borders],
        [_across(mark, y=y(mark.at)) for mark in plot.horizontals],
        [_across(mark, x=x(mark.at)) for mark in plot.verticals],
        [_line(line, x, y) for line in series],
        [
            element("circle", class_=f"dot spot c{dot.style}", id=dot.key, cx=x(dot.x), cy=y(dot.y), r=6)
            for dot in plot.dots
        ],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{plot.title}. {plot.summary}",
        id=f"{key}-svg",
    )
    return element(
        "figure",
        element("figcaption", plot.title),
        element("div", drawing, class_="canvas", data_plot=_reading(plot, series, x, y)),
        element("ul", [_key(item) for item in (*series, *marks)], class_="legend"),
        element("p", plot.note, class_="note") if plot.note else None,
        _data(plot, series),
        class_="plot",
        id=key,
    )


def _thinned(line: Series) -> Series:
    """At most ``_POINTS`` points, evenly chosen, the ends kept."""
    count = len(line.xs)
    if count <= _POINTS:
        return line
    places = sorted({round(i * (count - 1) / (_POINTS - 1)) for i in range(_POINTS)})
    spread = None if line.spread is None else [line.spread[i] for i in places]
    return Series(
        line.name,
        [line.xs[i] for i in places],
        [line.ys[i] for i in places],
        line.style,
        line.dashed,
        spread,
        line.bars,
    )


def scales(plot: Plot) -> tuple[Scale, Scale]:
    """Where values lie on the drawing, across and up."""
    series = plot.series
    xs = [x for line in series for x in line.xs]
    low, high = plot.x_range or (min(xs, default=0.0), max(xs, default=1.0))
    if not high > low:
        low, high = padded(low, high)
    ys = [value for line in series for value in _extent(line)] + [mark.at for mark in plot.horizontals]
    known = [value for value in ys if math.isfinite(value)] or [0.0, 1.0]
    bottom, top = plot.y_range or padded(min(known), max(known))
    return Scale(low, high, LEFT, WIDTH - RIGHT, plot.log_x), Scale(bottom, top, HEIGHT - BOTTOM, TOP)


def _extent(line: Series) -> list[float]:
    spread = line.spread or [0.0] * len(line.ys)
    return [value for y, s in zip(line.ys, spread, strict=True) for value in (y - s, y + s)]


def _frame(plot: Plot, x: Scale, y: Scale) -> Markup:
    bottom = HEIGHT - BOTTOM
    rows = [
        joined(
            element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick)),
            element("text", plot.y_format(tick), class_="tick end", x=LEFT - 8, y=y(tick), dy="0.35em"),
        )
        for tick in y.ticks(5)
    ]
    ticks = x.ticks(6) if plot.x_ticks is None else list(plot.x_ticks)
    columns = [
        joined(
            element("line", class_="axis", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 4),
            element("text", plot.x_format(tick), class_="tick middle", x=x(tick), y=bottom + 9, dy="0.75em"),
        )
        for tick in ticks
    ]
    return joined(
        rows,
        columns,
        element("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom),
        element("text", plot.y_label, class_="label", x=4, y=14),
        element("text", plot.x_label, class_="label end", x=WIDTH - RIGHT, y=HEIGHT - 6),
    )


def _border(at: float, name: str, x: Scale, y: Scale) -> Markup:
    return joined(
        element("line", class_="border", x1=x(at), x2=x(at), y1=y.end, y2=y.start),
        element("text", name, class_="tick end", x=x(at) - 5, y=y.start - 8) if name else None,
    )


def _across(mark: Mark, *, x: float | None = None, y: float | None = None) -> Markup:
    kind = f"mark c{mark.style}" + (" dashed" if mark.dashed else "")
    if x is not None:
        return element("line", class_=kind, x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, id=mark.key)
    return element("line", class_=kind, x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)


def _line(line: Series, x: Scale, y: Scale) -> Markup:
    points = [(x(a), b) for a, b in zip(line.xs, line.ys, strict=True)]
    pieces: list[Content] = []
    if line.spread is not None and not line.bars:
        pieces.append(_band(line, x, y))
    if line.spread is not None and line.bars:
        pieces += [
            element("line", class_=f"bar c{line.style}", x1=at, x2=at, y1=y(value - s), y2=y(value + s))
            for (at, value), s in zip(points, line.spread, strict=True)
            if math.isfinite(value) and math.isfinite(s)
        ]
    path = _path([(at, y(value)) if math.isfinite(value) else None for at, value in points])
    pieces.append(element("path", class_=f"line c{line.style}" + (" dashed" if line.dashed else ""), d=path))
    if line.bars or (len(points) <= _DOTTED and not line.dashed):
        pieces += [
            element("circle", class_=f"dot c{line.style}", cx=at, cy=y(value), r=3.5 if line.bars else 2.2)
            for at, value in points
            if math.isfinite(value)
        ]
    return joined(pieces)


def _band(line: Series, x: Scale, y: Scale) -> Markup:
    assert line.spread is not None
    rows = [
        (x(a), b, s)
        for a, b, s in zip(line.xs, line.ys, line.spread, strict=True)
        if math.isfinite(b) and math.isfinite(s)
    ]
    edge = [(at, y(value + s)) for at, value, s in rows] + [(at, y(v - s)) for at, v, s in reversed(rows)]
    return element(
        "polygon",
        class_=f"band c{line.style}",
        points=" ".join(f"{coordinate(a)},{coordinate(b)}" for a, b in edge),
    )


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        parts.append(f"{pen}{coordinate(point[0])} {coordinate(point[1])}")
        pen = "L"
    return "".join(parts)


def _key(item: Series | Mark | Dot) -> Markup:
    if isinstance(item, Dot):
        shape = element("circle", class_=f"dot spot c{item.style}", cx=11, cy=6, r=4.5)
    else:
        kind = f"swatch c{item.style}" + (" dashed" if item.dashed else "")
        shape = element("line", class_=kind, x1=1, x2=21, y1=6, y2=6)
    swatch = element("svg", shape, viewBox="0 0 22 12", aria_hidden="true", class_="key")
    value = element("span", class_="now", aria_hidden="true") if isinstance(item, Series) else None
    return element("li", swatch, item.name, value)


def _reading(plot: Plot, series: Sequence[Series], x: Scale, y: Scale) -> str:
    """What the page's script needs to read values off: positions on paper and the words for them."""
    lines = [
        {
            "name": line.name,
            "style": line.style,
            "points": [
                [round(x(a), 1), round(y(b), 1), plot.x_format(a), plot.y_format(b)]
                for a, b in zip(line.xs, line.ys, strict=True)
                if math.isfinite(b)
            ],
        }
        for line in series
    ]
    content = {"label": plot.x_label, "top": TOP, "bottom": HEIGHT - BOTTOM, "lines": lines}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _data(plot: Plot, series: Sequence[Series]) -> Markup:
    """The figures as a table, for whoever does not see the picture or wants to copy them."""
    longest = max((len(line.xs) for line in series), default=0)
    at = sorted({x for line in series for x in line.xs})
    every = max(1, math.ceil(len(at) / _ROWS))
    shown = sorted({*at[::every], *at[-1:]})
    columns = [
        {a: (b, line.spread[i] if line.spread is not None else None) for i, (a, b) in enumerate(_pairs(line))}
        for line in series
    ]
    rows = [[plot.x_format(x), *(_cell(column.get(x), plot.y_format) for column in columns)] for x in shown]
    extra = [f"{mark.name}: {plot.y_format(mark.at)}." for mark in plot.horizontals]
    extra += [f"{mark.name}: {plot.x_format(mark.at)}." for mark in plot.verticals]
    if every > 1:
        extra.append(f"Every {every}th of {longest} points is listed.")
    return element(
        "details",
        element("summary", f"Data: {plot.title}"),
        table([plot.x_label, *(line.name for line in series)], rows, f"Data of the figure {plot.title}"),
        element("p", " ".join(extra), class_="note") if extra else None,
        class_="data",
    )


def _pairs(line: Series) -> list[tuple[float, float]]:
    return list(zip(line.xs, line.ys, strict=True))


def _cell(found: tuple[float, float | None] | None, shown: Format) -> str:
    if found is None:
        return "–"
    value, spread = found
    return (
        shown(value) if spread is None or not math.isfinite(spread) else f"{shown(value)} ± {shown(spread)}"
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
