"""What each column of a table adds to the answer: importance by name, shapes with bands of noise."""

from __future__ import annotations

from tacit.jobs.explanation import MISSING, ColumnShape, Explanation
from tacit.report.markup import Markup, bar, element, grid, joined, note, section, table
from tacit.report.plot import Plot, Series, draw, number
from tacit.report.reading import RunView

_SHOWN = 14
_DRAWN = 6
_MOST_OUTPUTS = 5
_MOST_VALUES = 24
_BANDS = (
    "Bands and ± are two standard deviations of the noise in the weights, carried through learning rate and momentum; "
    "that later steps correct earlier noise is left out, so they are rather too wide. They do not cover the chance of "
    "which rows were in the data."
)
_NO_BANDS = "How much of it is noise is known for plain SGD only, which this run did not use."


def columns(run: RunView, key: str, level: int) -> Markup | None:
    """What the weights of a table's model say by column; nothing for other models."""
    found = run.diagnosis.explanation if run.diagnosis is not None else None
    if found is None or not found.columns:
        return None
    drawn = [shape for shape in found.columns if shape.points][:_DRAWN]
    return section(
        f"{key}-columns",
        "What each column adds",
        level,
        element("p", _told(found)),
        _importance(found, key),
        grid(*(_shape(shape, found, f"{key}-shape-{place}") for place, shape in enumerate(drawn, 1))),
        note(
            "From released weights and the schema only; no row was read. Every value that is shown counts alike, "
            "however many rows have it, and columns that say the same share their effect. ",
            _BANDS if found.columns[0].noise is not None else _NO_BANDS,
        ),
    )


def _told(found: Explanation) -> str:
    text = f"The model is a sum over {len(found.columns):,} columns: each adds to the {found.answer}."
    if found.columns[0].noise is None:
        return text
    clear = sum(shape.clear for shape in found.columns)
    return (
        f"{text} {clear:,} of them stand clear of the noise: importance at least twice that of noise alone."
    )


def _importance(found: Explanation, key: str) -> Markup:
    most = found.columns[0].importance or 1.0
    rows = [
        (
            shape.column,
            bar(shape.importance / most, 1 if shape.clear or shape.noise is None else 6),
            number(shape.importance, 3),
            "not known" if shape.noise is None else number(shape.noise, 3),
        )
        for shape in found.columns
    ]
    header = ("Column", "", "Importance", "Noise alone")
    title = "Importance: root mean square of what a column adds"
    rest = None
    if len(rows) > _SHOWN:
        rest = element(
            "details",
            element("summary", f"{len(rows) - _SHOWN:,} more columns"),
            table(header, rows[_SHOWN:], f"{title}, continued", kind="bars"),
        )
    return element(
        "figure",
        element("figcaption", title),
        table(header, rows[:_SHOWN], title, kind="bars"),
        rest,
        class_="plot tabular",
        id=f"{key}-importance",
    )


def _shape(shape: ColumnShape, found: Explanation, key: str) -> Markup:
    if shape.kind == "number":
        return _curve(shape, found, key)
    return _values(shape, found, key)


def _curve(shape: ColumnShape, found: Explanation, key: str) -> Markup:
    places = [at for at, point in enumerate(shape.points) if not isinstance(point, str)]
    xs = [float(shape.points[at]) for at in places]
    alone = "added" if shape.deviations is None else "added (± two standard deviations of its noise)"
    names = (alone,) if len(found.outputs) == 1 else found.outputs
    series = [
        Series(
            name,
            xs,
            [effects[at] for at in places],
            1 + row % _MOST_OUTPUTS,
            spread=None if shape.deviations is None else [2 * shape.deviations[row][at] for at in places],
        )
        for row, (name, effects) in enumerate(zip(names, shape.effects, strict=True))
    ][:_MOST_OUTPUTS]
    first = shape.effects[0]
    low, high = min(places, key=first.__getitem__), max(places, key=first.__getitem__)
    text = (
        f"{shape.column}: from {number(first[low], 3)} at {number(float(shape.points[low]))} to "
        f"{number(first[high], 3)} at {number(float(shape.points[high]))}"
    )
    if MISSING in shape.points:
        text += f"; {number(first[shape.points.index(MISSING)], 3)} where it is missing"
    return draw(
        Plot(
            shape.column,
            f"{text}.",
            shape.column,
            "added",
            series,
            x_format=lambda value: number(value),
            y_format=lambda value: number(value, 3),
            note=f"{text}.",
        ),
        key,
    )


def _values(shape: ColumnShape, found: Explanation, key: str) -> Markup:
    """Categories and dates: a table, the highest first; with several outputs one column each."""
    order = list(range(len(shape.points)))
    if shape.kind == "category":
        order.sort(key=lambda at: -shape.effects[0][at])
    rows = [
        (
            joined(element("em", "missing")) if shape.points[at] == MISSING else str(shape.points[at]),
            *(_effect(shape, row, at) for row in range(len(shape.effects))[:_MOST_OUTPUTS]),
        )
        for at in order
    ]
    header = (shape.column, *(["added"] if len(found.outputs) == 1 else found.outputs[:_MOST_OUTPUTS]))
    title = f"{shape.column}: what each value adds"
    rest = None
    if len(rows) > _MOST_VALUES:
        rest = element(
            "details",
            element("summary", f"{len(rows) - _MOST_VALUES:,} more values"),
            table(header, rows[_MOST_VALUES:], f"{title}, continued"),
        )
    return element(
        "figure",
        element("figcaption", shape.column),
        table(header, rows[:_MOST_VALUES], title),
        rest,
        class_="plot tabular",
        id=key,
    )


def _effect(shape: ColumnShape, row: int, at: int) -> str:
    text = number(shape.effects[row][at], 3)
    return text if shape.deviations is None else f"{text} ± {number(2 * shape.deviations[row][at], 2)}"
