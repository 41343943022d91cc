"""What all figures share: colours that everyone can tell apart, names of measures, files written whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import FileError
from tacit.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


_NAMES = {"auc": "AUC", "r2": "R²"}


def measure_name(measure: str) -> str:
    """A measure as people write it."""
    return _NAMES.get(measure, measure.replace("_", " "))


class FigureError(FileError):
    """Nothing can be drawn here: matplotlib is not installed."""


def check_figures() -> None:
    """Refuse before the work if its figure could not be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise FigureError("Figures need matplotlib: run pip install 'tacit-dp[figures]'.") from error


def new_figure(width: float, height: float, dpi: int) -> Figure:
    """An empty figure of so many inches, for a file and not for a screen.

    matplotlib is loaded here and nowhere else: whoever draws nothing neither waits for it nor needs it.
    """
    check_figures()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    write_atomically(path, lambda place: figure.savefig(place, format="png"))


def tidy(axes: Axes) -> None:
    """Only the axes and grid lines that carry numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
