"""The map as a figure: one panel per part, differences to dense DP-SGD with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tacit.plotting import COLOURS, save
from tacit_papers.sparsity_map.page import comparisons

SHOWN = ("random, 0.1", "squares, 0.1", "movement, 0.1", "auto", "soft")


def draw_map(record: dict[str, Any], path: Path) -> None:
    """Every setting a group of intervals; right of the line is better than dense."""
    compared = comparisons(record)
    settings = [
        s for s in record["settings"] if sum((s["part"], s["name"], m) in compared for m in SHOWN) > 1
    ]
    figure = Figure(figsize=(9, 1.5 + 0.62 * len(settings)), dpi=150, layout="constrained")
    axes = figure.subplots()
    for place, setting in enumerate(settings):
        for number, label in enumerate(SHOWN):
            entry = compared.get((setting["part"], setting["name"], label))
            if entry is None:
                continue
            found, _ = entry
            y = place + 0.13 * (number - (len(SHOWN) - 1) / 2)
            axes.plot([found.low, found.high], [y, y], color=COLOURS[number], linewidth=1.4)
            axes.plot([found.mean], [y], "o", color=COLOURS[number], markersize=4)
    axes.axvline(0, color="0.4", linewidth=1)
    axes.set_yticks(
        range(len(settings)), [f"{s['name']}\nd = {s['coordinates']:,}" for s in settings], fontsize=7
    )
    axes.invert_yaxis()
    axes.set_xlabel("points above dense DP-SGD (95 % intervals over seeds)")
    for number, label in enumerate(SHOWN):
        axes.plot([], [], "o-", color=COLOURS[number], markersize=4, label=label)
    axes.legend(frameon=False, fontsize=8, loc="best")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    save(figure, path)
