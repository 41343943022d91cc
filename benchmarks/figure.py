"""The results as a picture: grouped bars on a logarithmic scale, time above and memory below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.results import Limit, Result

COLOURS = {
    "sgd": "#9aa0a6",
    "opacus-hooks": "#fbd0a2",
    "opacus-functorch": "#fdae6b",
    "opacus-ew": "#f3853c",
    "opacus-ghost": "#c9540c",
    "tacit-dense": "#9ecae1",
    "tacit-topk": "#4292c6",
    "tacit-rows": "#084594",
}
LABELS = {
    "sgd": "SGD, default format",
    "opacus-hooks": "Opacus hooks",
    "opacus-functorch": "Opacus functorch",
    "opacus-ew": "Opacus ew",
    "opacus-ghost": "Opacus ghost",
    "tacit-dense": "Tacit, all coordinates",
    "tacit-topk": "Tacit, TP-TopK, ρ = 0.1",
    "tacit-rows": "Tacit, rows, ρ = 0.1",
}

TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def _best_format(results: list[Result], name: str) -> Result | None:
    """Of the two memory formats of a contender, the faster; plain SGD is shown in the default format."""
    names = {name} if name == "sgd" else {name, f"{name}-cl"}
    shown = [r for r in results if r.contender in names and r.time_ratio is not None]
    return min(shown, key=lambda r: r.time_ratio.median if r.time_ratio else 0.0, default=None)


def draw(results: list[Result], path: Path, caption: str) -> None:
    """Write the figure to `path`; its format follows the suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(result.workload for result in results))
    panels: list[tuple[str, Callable[[Result], float | None], Callable[[Result], Limit | None]]] = [
        (
            "time of a step × fastest plain SGD",
            lambda r: r.time_ratio.median if r.time_ratio else None,
            lambda r: r.time_bar,
        ),
        ("peak memory × that SGD", lambda r: r.memory_ratio, lambda r: r.memory_bar),
    ]
    figure, axes = pyplot.subplots(2, 1, figsize=(12, 8), layout="constrained")
    width = 0.9 / len(COLOURS)
    for axis, (title, value_of, bar_of) in zip(axes, panels, strict=True):
        for slot, (name, colour) in enumerate(COLOURS.items()):
            labelled = False
            for group, workload in enumerate(workloads):
                result = _best_format([r for r in results if r.workload == workload], name)
                value = value_of(result) if result is not None else None
                if result is None or value is None:
                    continue
                x = group + (slot - (len(COLOURS) - 1) / 2) * width
                axis.bar(
                    x, value - 1, width, bottom=1, color=colour, label=None if labelled else LABELS[name]
                )
                labelled = True
                limit = bar_of(result)
                text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
                axis.annotate(
                    text,
                    (x, max(value, 1, limit.bar if limit else 1)),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                )
                if limit is not None:
                    axis.hlines(limit.bar, x - width / 2, x + width / 2, color="black", linewidth=1.5)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_ylim(bottom=0.5)
        axis.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axis.set_ylabel(title)
        axis.set_xticks(range(len(workloads)), workloads)
        axis.grid(axis="y", which="both", alpha=0.25)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].legend(ncols=4, fontsize=8, frameon=False, loc="upper right")
    figure.supxlabel(f"{caption}; Opacus in its faster memory format; black ticks: the bar", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None} if path.suffix == ".png" else None)
    pyplot.close(figure)
