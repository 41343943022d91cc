"""Figures over the run: held-out measures and the signal in what was released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.plotting import measure_name
from tacit.report.markup import Markup, grid, note, section
from tacit.report.plot import Plot, Series, draw, number
from tacit.report.reading import RunView, as_number
from tacit.report.sections.spending import spending_figure

HELD_OUT = "held_out_"
_TOGETHER = ("sensitivity", "specificity")
_ABOUT = {
    "signal_to_noise": (
        "Signal to noise of a release",
        "The energy of the released gradient beyond its expected noise, over that noise. It is an estimate "
        "from the noisy release itself, so it is rough and at times 0.",
    )
}


def learning(run: RunView, key: str, level: int) -> Markup:
    """ε, held-out figures and signal to noise over the steps."""
    names = measure_names(run.metrics)
    pairs = [name for name in _TOGETHER if name in names]
    figures = [
        measure_figure(run.metrics, [name], f"{key}-{name}")
        for name in names
        if name not in pairs or len(pairs) < len(_TOGETHER)
    ]
    if len(pairs) == len(_TOGETHER):
        figures.append(measure_figure(run.metrics, pairs, f"{key}-rates"))
    signal = _signal(run.metrics, key)
    return section(
        f"{key}-course",
        "The course of the run",
        level,
        grid(spending_figure(run, key), figures, signal),
        note(
            "Measured on held-out data, which is never trained on; ε does not cover these figures. Loss and "
            "accuracy on the training data would have to be paid for, so they are not known."
        )
        if names
        else note("No held-out data was measured during this run."),
    )


def measure_names(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The held-out measures that a run has, the loss last."""
    found = dict.fromkeys(
        key.removeprefix(HELD_OUT)
        for row in metrics
        for key, value in row.items()
        if key.startswith(HELD_OUT) and as_number(value) is not None
    )
    return sorted(found, key=lambda name: name == "loss")


def course(metrics: Sequence[Mapping[str, Any]], column: str) -> tuple[list[float], list[float]]:
    """Steps and values of one column, where it has a value."""
    rows = [
        (step, value)
        for row in metrics
        if (step := as_number(row["step"])) is not None and (value := as_number(row.get(column))) is not None
    ]
    return [step for step, _ in rows], [value for _, value in rows]


def measure_figure(metrics: Sequence[Mapping[str, Any]], names: Sequence[str], key: str) -> Markup:
    """One or more held-out measures over the steps."""
    series = [
        Series(measure_name(name), *course(metrics, HELD_OUT + name), style)
        for style, name in enumerate(names, 1)
    ]
    title = f"Held-out {' and '.join(measure_name(name) for name in names)}"
    return draw(
        Plot(title, " ".join(map(_told, series)), "step", " and ".join(s.name for s in series), series), key
    )


def _signal(metrics: Sequence[Mapping[str, Any]], key: str) -> Markup | None:
    steps, values = course(metrics, "signal_to_noise")
    if not values:
        return None
    title, about = _ABOUT["signal_to_noise"]
    series = Series("signal to noise", steps, values, 3)
    top = max(*values, 0.01)
    return draw(
        Plot(title, _told(series), "step", "signal / noise", [series], y_range=(0, 1.1 * top), note=about),
        f"{key}-signal",
    )


def _told(series: Series) -> str:
    return (
        f"{series.name}: from {number(series.ys[0])} at step {series.xs[0]:,.0f} to {number(series.ys[-1])} "
        f"at step {series.xs[-1]:,.0f}; lowest {number(min(series.ys))}, highest {number(max(series.ys))}."
    )
