"""Figures: line charts with error bars, without a display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import FileError
from tacit.plotting import new_figure


@dataclass(frozen=True)
class Line:
    """A named line: its points and, where known, half the height of their error bars."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


def draw_lines(
    path: str | Path, title: str, x_label: str, y_label: str, lines: Sequence[Line], log: str = ""
) -> None:
    """Write a line chart to ``path``; ``log`` names the axes ("x", "y", "xy") with a logarithmic scale."""
    figure = new_figure(6.4, 4.2, dpi=110)
    axes = figure.add_subplot()
    styles = ("-", "--", "-.", ":")
    for number, line in enumerate(lines):
        style = styles[number // 10 % len(styles)]
        if line.error is None:
            axes.plot(line.x, line.y, style, marker=".", label=line.name)
        else:
            axes.errorbar(line.x, line.y, line.error, linestyle=style, marker=".", capsize=2, label=line.name)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None} if str(path).endswith(".png") else None)
    except (OSError, ValueError) as error:
        raise FileError(f"The figure {path} cannot be written: {error}.") from error
