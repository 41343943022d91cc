"""Runs the experiments of `reproduction` and writes Table 3, the figures and every number behind them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tacit.federated.plots import Line, draw_lines
from tacit.federated.sampling import sample_coordinates
from tacit.federated.selection import selection_law
from tacit.federated.simulation import Experiment, Scores, cross_validate, half_width
from tacit.files import write_json, write_text
from tacit_papers.fedsel.settings import (
    MODELS,
    RATE,
    RATES,
    SELECTIONS,
    TABLE_DATA,
    TABLE_EPSILON,
    Figure,
    Setting,
    figures,
    rate_experiments,
    table_experiments,
)

Say = Callable[[str], None]

# The table as printed in the paper: (gain, loss) in points for EXP, PE and PS.
PUBLISHED: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {
    ("syn-L-0.01-0.9", "logistic"): ((8.6074, 0.3517), (5.410, 1.192), (5.975, 0.4970)),
    ("syn-L-0.01-0.9", "svm"): ((7.1950, 2.1593), (3.7704, 0.8533), (5.065, 2.0816)),
    ("bank", "logistic"): ((2.4197, -0.157), (3.2338, 0.0464), (2.5525, 0.1463)),
    ("bank", "svm"): ((4.3823, 0.4436), (3.4369, 0.2530), (4.0244, 0.0164)),
    ("kdd99", "logistic"): ((2.0471, 0.5091), (2.5148, 0.2322), (2.0171, 0.3428)),
    ("kdd99", "svm"): ((1.85629, -0.1625), (2.2168, 0.2288), (1.8291, 0.4465)),
    ("adult", "logistic"): ((5.5745, 0.2935), (5.6445, 1.3096), (6.0535, 0.8091)),
    ("adult", "svm"): ((5.5361, 0.1949), (5.6057, 0.9550), (5.1442, 0.3852)),
}


class Runner:
    """Runs experiments one after the other, each at most once."""

    def __init__(self, workers: int, say: Say) -> None:
        self._workers = workers
        self._say = say
        self._done: dict[str, Scores] = {}

    def scores(self, name: str, experiment: Experiment) -> Scores:
        """Return the scores of ``experiment``."""
        key = repr(experiment)
        if key not in self._done:
            started = time.perf_counter()
            self._done[key] = cross_validate(experiment, self._workers)
            mean, seconds = 100 * self._done[key].mean, time.perf_counter() - started
            self._say(f"{experiment.data} {experiment.model} {name}: {mean:.2f} % ({seconds:.1f} s)")
        return self._done[key]


def reproduce(
    out: str | Path,
    parts: tuple[str, ...],
    table_setting: Setting,
    figure_setting: Setting,
    workers: int = 1,
    say: Say = lambda line: None,
) -> None:
    """Write ``parts`` of the paper's results to ``out``: images, Markdown tables and JSON."""
    folder, runner = Path(out), Runner(workers, say)
    if "table3" in parts:
        rows = [_table_row(runner, table_setting, d, m) for d in TABLE_DATA for m in MODELS]
        write_json(folder / "table3.json", {"learning rate": RATE, "epsilon": TABLE_EPSILON, "rows": rows})
        write_text(folder / "table3.md", table_markdown(rows))
    if "rates" in parts:
        found = [_rates_row(runner, figure_setting, folder, d, m) for d in TABLE_DATA for m in MODELS]
        write_json(folder / "rates.json", {"epsilon": TABLE_EPSILON, "rates": RATES, "rows": found})
        write_text(folder / "rates.md", rates_markdown(found))
    if "2e" in parts:
        _cost_panel(folder)
    for figure in figures(figure_setting):
        if figure.name in parts:
            _panel(runner, folder, figure)


def _table_row(runner: Runner, setting: Setting, data: str, model: str) -> dict[str, Any]:
    scores = {name: runner.scores(name, e) for name, e in table_experiments(setting, data, model).items()}
    row: dict[str, Any] = {
        "data": data,
        "model": model,
        "accuracy": {
            name: {"mean": s.mean, "half width": s.half_width, "deviation": s.deviation}
            for name, s in scores.items()
        },
    }
    for number, select in enumerate(SELECTIONS):
        private = scores[f"{select.upper()}-PM"].accuracy
        control = scores[f"{select.upper()}-PM-C"].accuracy
        base = scores["PM"].accuracy
        row[select] = {
            "gain": _difference(control, base),
            "loss": _difference(control, private),
            "two-stage over flat": _difference(private, base),
            "choice over random": _difference(private, scores["RANDOM-PM"].accuracy),
            "published": PUBLISHED[data, model][number],
        }
    return row


def _difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return mean and half width, in points, of the paired difference of two sets of accuracies."""
    points = 100 * (a - b)
    return float(points.mean()), half_width(points)


def table_markdown(rows: list[dict[str, Any]]) -> str:
    """Return Table 3 with our numbers, the published ones in brackets, and what two-stage adds to flat."""
    lines = [
        "| data | model | PM accuracy | selection | gain (published) | loss (published) | X-PM − PM "
        "| X-PM − RANDOM-PM |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        base = row["accuracy"]["PM"]
        for select in SELECTIONS:
            entry = row[select]
            gain, loss, over = entry["gain"], entry["loss"], entry["two-stage over flat"]
            choice = entry["choice over random"]
            published_gain, published_loss = entry["published"]
            lines.append(
                f"| {row['data']} | {row['model']} | "
                f"{100 * base['mean']:.2f} ± {100 * base['half width']:.2f} | "
                f"{select.upper()} | {gain[0]:.2f} ± {gain[1]:.2f} ({published_gain:.2f}) | "
                f"{loss[0]:.2f} ± {loss[1]:.2f} ({published_loss:.2f}) | {over[0]:+.2f} ± {over[1]:.2f} | "
                f"{choice[0]:+.2f} ± {choice[1]:.2f} |"
            )
    return "\n".join(lines) + "\n"


def _rates_row(runner: Runner, setting: Setting, folder: Path, data: str, model: str) -> dict[str, Any]:
    row: dict[str, Any] = {"data": data, "model": model}
    lines = []
    for name, by_rate in rate_experiments(setting, data, model).items():
        scores = {rate: runner.scores(f"{name} α={rate}", e) for rate, e in by_rate.items()}
        best = max(RATES, key=lambda rate: scores[rate].mean)
        row[name] = {
            "best rate": best,
            "best": scores[best].mean,
            "half width": scores[best].half_width,
            "by rate": [scores[rate].mean for rate in RATES],
        }
        lines.append(_line(name, list(RATES), [scores[rate] for rate in RATES], False))
    title = f"{data}, {model}, ε = {TABLE_EPSILON:g}"
    draw_lines(folder / f"rates-{data}-{model}.png", title, "learning rate α", "test accuracy", lines, "x")
    return row


def rates_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the best learning rate of each method and the accuracy there."""
    names = [name for name in rows[0] if name not in ("data", "model")]
    lines = [
        "| data | model | " + " | ".join(f"{n}: best (α)" for n in names) + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        cells = [
            f"{100 * row[n]['best']:.2f} ± {100 * row[n]['half width']:.2f} ({row[n]['best rate']:g})"
            for n in names
        ]
        lines.append(f"| {row['data']} | {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _line(name: str, x: list[float], scores: list[Scores], misclassification: bool) -> Line:
    y = [1 - s.mean if misclassification else s.mean for s in scores]
    return Line(name, x, y, [s.deviation for s in scores])


def _panel(runner: Runner, folder: Path, figure: Figure) -> None:
    lines = []
    for name, points in figure.lines.items():
        scores = [runner.scores(f"{figure.name} {name} {x:g}", experiment) for x, experiment in points]
        curve = scores[0].curve
        if figure.curve and curve is not None:
            mean = curve.mean(axis=0)
            lines.append(Line(name, scores[0].rounds, list(1 - mean if figure.misclassification else mean)))
        else:
            lines.append(_line(name, [x for x, _ in points], scores, figure.misclassification))
    label = "misclassification rate" if figure.misclassification else "test accuracy"
    title = f"Figure {figure.name[0]}({figure.name[1]}): {figure.title}"
    draw_lines(folder / f"figure-{figure.name}.png", title, figure.x_label, label, lines, figure.log)
    write_json(
        folder / f"figure-{figure.name}.json",
        {
            "title": figure.title,
            "y": label,
            "lines": {
                line.name: {"x": list(line.x), "y": list(line.y), "deviation": list(line.error or [])}
                for line in lines
            },
        },
    )


def _cost_panel(folder: Path) -> None:
    rng = np.random.default_rng(0)
    dimensions = (10, 100, 1_000, 10_000)
    lines = []
    for select in (*SELECTIONS, "random"):
        cost = []
        for d in dimensions:
            law = selection_law(select, d, max(1, d // 10), 1.0)
            batch = np.abs(rng.standard_normal((200, d))).astype(np.float32)
            sample_coordinates(law, batch, rng)
            times = []
            for _ in range(9):
                started = time.perf_counter()
                sample_coordinates(law, batch, rng)
                times.append(time.perf_counter() - started)
            cost.append(1e6 * float(np.median(times)) / len(batch))
        lines.append(Line(select.upper(), list(dimensions), cost))
    title = "Figure 2(e): cost of selection per client"
    draw_lines(folder / "figure-2e.png", title, "d", "microseconds", lines, "xy")
    write_json(
        folder / "figure-2e.json", {line.name: {"d": list(line.x), "µs": list(line.y)} for line in lines}
    )
