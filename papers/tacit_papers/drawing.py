"""Results as figures, the paper's values as hollow marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tacit.plotting import COLOURS, save
from tacit_papers.images import table as images
from tacit_papers.pages import TITLES
from tacit_papers.sparta import regime
from tacit_papers.sparta import table as sparta
from tacit_papers.tp_topk import figure1, network_sweeps, networks, table2, table3, table4, table5

Record = Mapping[str, Any]


def draw_table2(record: Record, path: Path) -> None:
    """Accuracy by ε, one panel per data set, one colour per method."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        for place, method in enumerate(rows[0]["methods"]):
            shift = 0.12 * (place - 2)
            at = [number + shift for number in range(len(rows))]
            entries = [row["methods"][method] for row in rows]
            _points(axes, at, [e["accuracy"] for e in entries], COLOURS[place], TITLES[method])
            published = [(x, e["published"][0]) for x, e in zip(at, entries, strict=True) if e["published"]]
            _hollow(axes, published, COLOURS[place])
        _by_epsilon(axes, rows)

    _panels(record, path, panel, "test accuracy, %")


def draw_table3(record: Record, path: Path) -> None:
    """Gain of the learned over the random support by active ratio."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        for place, epsilon in enumerate(dict.fromkeys(row["epsilon"] for row in rows)):
            own = [row for row in rows if row["epsilon"] == epsilon]
            at = [row["active_ratio"] + 0.01 * place for row in own]
            gains = [{"mean": row["gain"]["mean"], "deviation": row["gain"]["error"]} for row in own]
            _points(axes, at, gains, COLOURS[place], f"ε = {epsilon:g}")
            published = [
                (x, row["published"][1] - row["published"][0])
                for x, row in zip(at, own, strict=True)
                if row["published"]
            ]
            _hollow(axes, published, COLOURS[place])
        axes.axhline(0, color="0.6", linewidth=1)
        axes.set_xticks(table3.RATIOS)
        axes.set_xlabel("active ratio ρ")

    _panels(record, path, panel, "TP-TopK − TP-Rand, points")


def draw_table4(record: Record, path: Path) -> None:
    """Accuracy by the warm-up's share of the steps, one colour per share of ε."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        epsilons = list(dict.fromkeys(row["epsilon"] for row in rows))
        for place, budget in enumerate(table4.SHARES):
            own = [row for row in rows if row["share_of_epsilon"] == budget]
            at = [row["share_of_steps"] + 0.005 * place for row in own]
            _points(axes, at, [row["accuracy"] for row in own], COLOURS[place], f"{budget:g} of ε")
            published = [(x, row["published"][0]) for x, row in zip(at, own, strict=True) if row["published"]]
            _hollow(axes, published, COLOURS[place])
        axes.set_xticks(table4.SHARES)
        axes.set_xlabel(f"warm-up's share of the steps (ε = {', '.join(f'{e:g}' for e in epsilons)})")

    _panels(record, path, panel, "test accuracy, %")


def draw_table5(record: Record, path: Path) -> None:
    """AUC by ε; the line is training without noise."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        private = [row for row in rows if row["epsilon"] is not None]
        epsilons = sorted({row["epsilon"] for row in private})
        for place, method in enumerate(table5.METHODS[1:]):
            own = [row for row in private if row["method"] == method]
            at = [epsilons.index(row["epsilon"]) + 0.1 * (place - 1) for row in own]
            _points(axes, at, [row["auc"] for row in own], COLOURS[place], TITLES[method])
        for row in rows:
            if row["epsilon"] is None:
                axes.axhline(
                    100 * row["auc"]["mean"], color="0.45", linestyle="--", label=TITLES[row["method"]]
                )
        axes.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axes.set_xlabel("ε")

    _panels(record, path, panel, "AUC, %")


def draw_figure1(record: Record, path: Path) -> None:
    """Captured energy by the share of coordinates: in hindsight, by the released score, at random."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        for place, row in enumerate(rows):
            ratios, colour = [0, *row["ratios"], 1], COLOURS[place]
            label = f"by score, ε = {row['epsilon']:g}"
            axes.plot(ratios, [0, *row["by_score"], 1], color=colour, label=label)
            best = "best possible" if place == 0 else None
            axes.plot(ratios, [0, *row["best"], 1], color=colour, linestyle="--", linewidth=1, label=best)
        axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="random")
        axes.set_xlabel("share of coordinates (NOT PRIVATE: true gradients)")

    _panels(record, path, panel, "share of gradient energy")


def draw_sparta(record: Record, path: Path) -> None:
    """The measure of each task by ε, one colour per way to fine-tune."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        epsilons = sorted({row["epsilon"] for row in rows})
        variants = [way.label for way in sparta.WAYS if way.variant]
        whole = [row["method"] for row in rows if row["method"] not in variants]
        for place, method in enumerate(dict.fromkeys(whole)):
            own = [row for row in rows if row["method"] == method]
            at = [epsilons.index(row["epsilon"]) + 0.08 * (place - 3.5) for row in own]
            _points(axes, at, [row[sparta.MEASURE] for row in own], (*COLOURS, "0.6")[place], method)
        axes.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axes.set_xlabel("ε")

    _panels(record, path, panel, "AUC, %")


def draw_images(record: Record, path: Path) -> None:
    """The recipe's measure by ε, and the field's best as hollow points."""

    def panel(axes: Axes, rows: Sequence[Record]) -> None:
        _points(axes, range(len(rows)), [row[row["measure"]] for row in rows], COLOURS[0], "recipe")
        known = [
            (place, row["published"][0]) for place, row in enumerate(rows) if row["published"] is not None
        ]
        _hollow(axes, known, "0.4")
        axes.set_xticks(range(len(rows)), [f"{row['epsilon']:g}" for row in rows])
        axes.set_xlabel(f"ε, {rows[0]['measure']} (hollow: the field's best)")

    _panels(record, path, panel, "%")


def _points(axes: Axes, at: Sequence[float], figures: Sequence[Record], colour: str, label: str) -> None:
    axes.errorbar(
        at,
        [100 * figure["mean"] for figure in figures],
        yerr=[100 * (figure["deviation"] or 0.0) for figure in figures],
        color=colour,
        label=label,
        marker="o",
        markersize=4,
        capsize=2,
        linewidth=0,
        elinewidth=1.2,
    )


def _hollow(axes: Axes, points: Sequence[tuple[float, float]], colour: str) -> None:
    if points:
        at, values = zip(*points, strict=True)
        axes.plot(at, values, marker="D", markersize=4, markerfacecolor="none", color=colour, linewidth=0)


def _by_epsilon(axes: Axes, rows: Sequence[Record]) -> None:
    axes.set_xticks(range(len(rows)), [f"{row['epsilon']:g}" for row in rows])
    axes.set_xlabel("ε (hollow: the paper)")


def _panels(record: Record, path: Path, panel: Callable[[Axes, Sequence[Record]], None], label: str) -> None:
    datasets = list(dict.fromkeys(row["dataset"] for row in record["rows"]))
    figure = Figure(figsize=(4.2 * len(datasets), 3.8), dpi=130, layout="constrained")
    for axes, dataset in zip(figure.subplots(1, len(datasets), squeeze=False)[0], datasets, strict=True):
        panel(axes, [row for row in record["rows"] if row["dataset"] == dataset])
        axes.set_title(TITLES[dataset], fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=7)
        axes.set_ylabel(label)
    save(figure, path)


DRAWINGS = {
    table2.NAME: draw_table2,
    table3.NAME: draw_table3,
    table4.NAME: draw_table4,
    table5.NAME: draw_table5,
    figure1.NAME: draw_figure1,
    sparta.NAME: draw_sparta,
    regime.NAME: draw_sparta,
    **{table.NAME: draw_table2 for table in networks.TABLES},
    **{sweep.NAME: draw_table3 for sweep in network_sweeps.RATIO_SWEEPS},
    **{sweep.NAME: draw_table4 for sweep in network_sweeps.SPLIT_SWEEPS},
    images.NAME: draw_images,
}
