"""A comparison of methods over seeds, as ``tacit compare`` wrote it."""

from __future__ import annotations

import math

from tacit.jobs.summary import Comparison, Row, Spread
from tacit.plotting import measure_name
from tacit.report.markup import Content, Markup, element, joined, note, section, table
from tacit.report.plot import STYLES, Mark, Plot, Scale, Series, draw, interval, number, padded, share


def comparison(found: Comparison, key: str, level: int) -> Markup:
    """Each method at each ε: mean and spread of its measures, and its paired difference."""
    seeds = max((row.seeds for row in found.rows), default=0)
    return section(
        key,
        f"Methods compared on {found.data}",
        level,
        element(
            "p",
            f"Mean over {seeds} {'seeds' if seeds != 1 else 'seed'} ± one standard deviation. Differences are "
            f"in {measure_name(found.measure)}, seed by seed, to ",
            element("q", found.paired_with),
            " at the same ε, ± the standard error of their mean.",
        ),
        _table(found),
        _by_epsilon(found, key),
        _all_measures(found),
        note(
            "Every run of a comparison has seeded noise and is not for release. On private data, a method "
            "chosen by this comparison is not covered by the ε of the run that is kept."
        ),
    )


def _table(found: Comparison) -> Markup:
    known = [
        value
        for row in found.rows
        if (s := row.measures.get(found.measure)) is not None and math.isfinite(s.mean)
        for value in (s.mean - _or_zero(s.deviation), s.mean + _or_zero(s.deviation))
    ]
    scale = Scale(*padded(min(known, default=0.0), max(known, default=1.0)), 6, 154)
    methods = list(dict.fromkeys(row.method for row in found.rows))
    header: list[Content] = ["Method", "ε", measure_name(found.measure), _axis(scale), "Difference", "Active"]
    rows = [_row(row, found.measure, scale, methods) for row in found.rows]
    return table(header, rows, f"Comparison on {found.data}", kind="comparison")


def _all_measures(found: Comparison) -> Markup | None:
    names = list(dict.fromkeys(name for row in found.rows for name in row.measures))
    if len(names) < 2:
        return None
    rows = [
        [row.method, number(row.epsilon), *(_spread(row.measures.get(name)) for name in names)]
        for row in found.rows
    ]
    return element(
        "details",
        element("summary", "All measures"),
        table(
            ["Method", "ε", *map(measure_name, names)],
            rows,
            f"All measures of the comparison on {found.data}",
            kind="comparison",
        ),
    )


def _row(row: Row, measure: str, scale: Scale, methods: list[str]) -> list[Content]:
    spread = row.measures.get(measure)
    style = methods.index(row.method) % STYLES + 1
    drawn = None
    if spread is not None and math.isfinite(spread.mean):
        drawn = interval(
            spread.mean, spread.deviation if math.isfinite(spread.deviation) else None, scale, style
        )
    return [
        row.method,
        number(row.epsilon),
        _spread(spread),
        drawn,
        "–" if row.difference is None else _signed(row.difference),
        share(row.active / row.coordinates),
    ]


def _axis(scale: Scale) -> Markup:
    """The scale of the column of dots, for the eye; the figures stand beside it."""
    texts = [
        element("text", number(tick), class_="tick middle", x=scale(tick), y=12) for tick in scale.ticks(3)
    ]
    return element("svg", texts, viewBox=f"0 0 {scale.end + 6:g} 16", class_="interval", aria_hidden="true")


def _by_epsilon(found: Comparison, key: str) -> Markup | None:
    """The measure over ε, where there are several."""
    epsilons = sorted({row.epsilon for row in found.rows if math.isfinite(row.epsilon)})
    if len(epsilons) < 2:
        return None
    methods = list(dict.fromkeys(row.method for row in found.rows if math.isfinite(row.epsilon)))
    series = []
    for style, method in enumerate(methods[:STYLES], 1):
        own = sorted(
            (row for row in found.rows if row.method == method and math.isfinite(row.epsilon)),
            key=lambda row: row.epsilon,
        )
        means = [row.measures[found.measure].mean for row in own]
        spreads = [_or_zero(row.measures[found.measure].deviation) for row in own]
        series.append(Series(method, [row.epsilon for row in own], means, style, spread=spreads, bars=True))
    noiseless = [
        Mark(row.measures[found.measure].mean, row.method, 6)
        for row in found.rows
        if math.isinf(row.epsilon) and math.isfinite(row.measures[found.measure].mean)
    ]
    name = measure_name(found.measure)
    told = "; ".join(
        f"{line.name}: "
        + ", ".join(f"{number(y)} at ε = {number(x)}" for x, y in zip(line.xs, line.ys, strict=True))
        for line in series
    )
    return draw(
        Plot(
            f"Held-out {name} by ε",
            f"{told}.",
            "ε",
            name,
            series,
            horizontals=noiseless,
            x_range=(epsilons[0] * 0.85, epsilons[-1] * 1.15),
            x_ticks=epsilons,
            log_x=True,
        ),
        f"{key}-by-epsilon",
    )


def _spread(spread: Spread | None) -> Content:
    if spread is None or math.isnan(spread.mean):
        return "–"
    if math.isnan(spread.deviation):
        return f"{spread.mean:.4f}"
    return joined(f"{spread.mean:.4f} ", element("span", f"± {spread.deviation:.4f}", class_="soft"))


def _signed(spread: Spread) -> Markup:
    text = f"{spread.mean:+.4f} ".replace("-", "−")
    known = math.isfinite(spread.deviation)
    return joined(text, element("span", f"± {spread.deviation:.4f}", class_="soft") if known else None)


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
