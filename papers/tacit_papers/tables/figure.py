"""The comparison as a figure: one panel per table, AUC by ε."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tacit.plotting import COLOURS, save
from tacit_papers.tables.cells import EPSILONS
from tacit_papers.tables.methods import METHODS
from tacit_papers.tables.page import by_seed

_ACROSS = 4


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Means with their deviation over seeds; models without privacy as level lines."""
    tables = list(record["tables"])
    down = -(-len(tables) // _ACROSS)
    figure = Figure(figsize=(3.1 * _ACROSS, 2.5 * down + 0.4), dpi=130, layout="constrained")
    panels = figure.subplots(down, _ACROSS, squeeze=False).flatten()
    for axes, table in zip(panels, tables, strict=False):
        for number, (method, about) in enumerate(METHODS.items()):
            found = [list(by_seed(record, table, method, epsilon).values()) for epsilon in EPSILONS]
            at = [place for place, seeds in enumerate(found) if seeds]
            if not at:
                continue
            colour = COLOURS[number % len(COLOURS)]
            if not about.private:
                style = "--" if method == "logistic" else ":"
                axes.axhline(
                    float(np.mean(found[0])), color="0.35", linewidth=1, linestyle=style, label=about.label
                )
                continue
            axes.errorbar(
                [place + 0.05 * (number - 2) for place in at],
                [float(np.mean(found[place])) for place in at],
                yerr=[float(np.std(found[place], ddof=1)) if len(found[place]) > 1 else 0.0 for place in at],
                color=colour,
                label=about.label,
                marker="o",
                markersize=3,
                linewidth=1,
                capsize=1.5,
            )
        axes.set_title(table, fontsize=9)
        axes.set_xticks(range(len(EPSILONS)), [f"{epsilon:g}" for epsilon in EPSILONS], fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92", linewidth=0.8)
    for axes in panels[len(tables) :]:
        axes.set_axis_off()
    lines = {
        label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = [about.label for about in METHODS.values() if about.label in lines]
    figure.legend(
        [lines[label] for label in labels],
        labels,
        loc="outside upper center",
        ncols=len(labels),
        frameon=False,
        fontsize=8,
    )
    save(figure, path)
