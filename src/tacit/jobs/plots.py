"""Figures of comparisons and diagnoses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.jobs.summary import Row
from tacit.plotting import COLOURS, measure_name, new_figure, save, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tacit.jobs.diagnosis import Diagnosis


def draw_comparison(rows: Sequence[Row], measure: str, title: str, path: Path) -> None:
    """``measure`` by ε, one colour per method, with one standard deviation over seeds as error bars."""
    epsilons = sorted({row.epsilon for row in rows if math.isfinite(row.epsilon)})
    methods = list(dict.fromkeys(row.method for row in rows if math.isfinite(row.epsilon)))
    figure = new_figure(6.4, 4.0, dpi=150)
    axes = figure.subplots()
    for place, method in enumerate(methods):
        own = {row.epsilon: row.measures[measure] for row in rows if row.method == method}
        shift = 0.08 * (place - (len(methods) - 1) / 2)
        at = [epsilons.index(epsilon) + shift for epsilon in own]
        axes.errorbar(
            at,
            [spread.mean for spread in own.values()],
            yerr=[spread.deviation if math.isfinite(spread.deviation) else 0.0 for spread in own.values()],
            label=method,
            color=COLOURS[place % len(COLOURS)],
            marker="o",
            markersize=5,
            capsize=3,
            linewidth=1.4,
        )
    for row in rows:
        if math.isinf(row.epsilon):
            axes.axhline(
                row.measures[measure].mean, color="0.45", linestyle="--", linewidth=1.2, label=row.method
            )
    axes.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xlim(-0.5, max(0.5, len(epsilons) - 0.5))
    axes.set_xlabel("ε")
    axes.set_ylabel(f"held-out {measure_name(measure)}")
    seeds = max(row.seeds for row in rows)
    axes.set_title(
        f"{title} ({seeds} seed{'s' if seeds > 1 else ''}, bars: one standard deviation)", fontsize=10
    )
    tidy(axes)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Energy curve with k and the break-even, active share per layer, ε over steps: those that there are."""
    panels: list[Callable[[Axes], None]] = []
    if diagnosis.energy is not None:
        panels.append(lambda axes: _energy(axes, diagnosis))
    panels += [lambda axes: _layers(axes, diagnosis), lambda axes: _epsilon(axes, diagnosis)]
    height = max(3.8, 0.32 * len(diagnosis.layers))
    figure = new_figure(4.4 * len(panels), height, dpi=150)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
        tidy(axes)
    figure.suptitle(f"{diagnosis.name}: {diagnosis.method}, ε = {diagnosis.promise:g}", fontsize=11)
    save(figure, path)


def _energy(axes: Axes, diagnosis: Diagnosis) -> None:
    energy = diagnosis.energy
    assert energy is not None
    counts = [count / diagnosis.coordinates for count in energy.counts]
    axes.fill_between(
        counts,
        [share - spread for share, spread in zip(energy.captured, energy.deviations, strict=True)],
        [share + spread for share, spread in zip(energy.captured, energy.deviations, strict=True)],
        color=COLOURS[0],
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(counts, energy.captured, color=COLOURS[0], label="captured energy")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":", label="random support")
    axes.axvline(
        diagnosis.active / diagnosis.coordinates,
        color=COLOURS[1],
        linewidth=1.4,
        label=f"active: k = {diagnosis.active:,} of {diagnosis.coordinates:,}",
    )
    if energy.break_even is not None:
        axes.axvline(
            energy.break_even / diagnosis.coordinates,
            color=COLOURS[2],
            linewidth=1.4,
            linestyle="--",
            label=f"one-step break-even ν₂²: k = {energy.break_even:,}",
        )
    axes.set_ylim(min(0.0, min(energy.captured)) - 0.02, 1.08)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of coordinates, best first")
    axes.set_ylabel("share of gradient energy")
    axes.set_title("What the warm-up released", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _layers(axes: Axes, diagnosis: Diagnosis) -> None:
    places = range(len(diagnosis.layers))
    names = [f"{layer.name}\n{layer.active:,} / {layer.coordinates:,}" for layer in diagnosis.layers]
    axes.barh(places, [1.0] * len(names), height=0.6, color="0.92")
    shares = [layer.active / layer.coordinates for layer in diagnosis.layers]
    axes.barh(places, shares, height=0.6, color=COLOURS[0])
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("active share")
    axes.set_title("Active coordinates by parameter", fontsize=10)


def _epsilon(axes: Axes, diagnosis: Diagnosis) -> None:
    axes.plot(diagnosis.steps, diagnosis.epsilons, color=COLOURS[0])
    if math.isfinite(diagnosis.promise):
        axes.axhline(diagnosis.promise, color=COLOURS[1], linestyle="--", linewidth=1.2, label="promised ε")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    for end in diagnosis.phase_ends[:-1]:
        axes.axvline(end, color="0.6", linewidth=1, linestyle=":")
    axes.set_xlabel("charged releases")
    axes.set_ylabel("ε spent")
    axes.set_ylim(bottom=0)
    axes.set_title("Privacy spent", fontsize=10)
