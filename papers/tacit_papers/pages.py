"""Results as Markdown, the paper's values in brackets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit_papers.images import table as images
from tacit_papers.sparta import regime
from tacit_papers.sparta import table as sparta
from tacit_papers.tp_topk import network_sweeps, networks, table2, table3, table4, table5

TITLES = {
    "mnist": "MNIST",
    "fmnist": "FMNIST",
    "cifar10": "CIFAR-10",
    "aptos-any": "APTOS, any retinopathy",
    "pneumoniamnist": "PneumoniaMNIST",
    "shirts": "Shirt or T-shirt",
    "shirts-efficientnet": "Shirt or T-shirt, EfficientNet-Lite0",
    "sst2": "SST-2",
    "nhanes": "NHANES diabetes",
    "dp-sgd": "DP-SGD",
    "tp-rand": "TP-Rand",
    "tp-topk": "TP-TopK",
    "on-rand": "ON-Rand",
    "on-topk": "ON-TopK",
    "rs": "RS",
    "no-noise": "without noise",
}

Record = Mapping[str, Any]


def table2_page(record: Record) -> str:
    """Accuracy in percent, mean ± deviation over seeds (the paper's)."""
    lines = _head("data", "ε", *[TITLES[method] for method in table2.METHODS], "best recipe", "paper's best")
    for row in record["rows"]:
        cells = [_percent(row["methods"][m], row["methods"][m]["published"]) for m in table2.METHODS]
        recipe = _percent(row["recipe"])
        if (
            row["published_best"] is not None
            and 100 * row["recipe"]["accuracy"]["mean"] > row["published_best"]
        ):
            recipe = f"**{recipe}**"
        paper = "–" if row["published_best"] is None else f"{row['published_best']:.2f}"
        lines.append(_line(TITLES[row["dataset"]], f"{row['epsilon']:g}", *cells, recipe, paper))
    return "\n".join(lines) + "\n"


def networks_page(record: Record) -> str:
    """Accuracy of every method (the paper's in brackets), how they were trained, and the rates they chose."""
    heads = [TITLES[method] for method in networks.METHODS]
    lines = _head("data", "ε", *heads, "epochs", "rates to choose from", "chosen")
    for row in record["rows"]:
        own = [row["methods"].get(method) for method in networks.METHODS]
        cells = ["–" if entry is None else _percent(entry, entry["published"]) for entry in own]
        grid = ", ".join(f"{rate:g}" for rate in row["rates"])
        tuned = "" if row["tuned_at"] is None else f" at ε = {row['tuned_at']:g}"
        chosen = ", ".join(f"{entry['learning_rate']:g}" for entry in own if entry is not None)
        lines.append(
            _line(
                TITLES[row["dataset"]],
                f"{row['epsilon']:g}",
                *cells,
                f"{row['epochs']:g}",
                f"{grid}{tuned}",
                chosen,
            )
        )
    return "\n".join(lines) + "\n"


def table3_page(record: Record) -> str:
    """Both methods by active ratio, and the paired gain with the standard error of its mean."""
    lines = _head("data", "ε", "ρ", "TP-Rand", "TP-TopK", "TP-TopK − TP-Rand", "paper's gain")
    for row in record["rows"]:
        paper, gain = row["published"], row["gain"]
        error = "" if gain["error"] is None else f" ± {100 * gain['error']:.2f}"
        lines.append(
            _line(
                TITLES[row["dataset"]],
                f"{row['epsilon']:g}",
                f"{row['active_ratio']:g}",
                _percent(row["tp-rand"], paper and (paper[0], None)),
                _percent(row["tp-topk"], paper and (paper[1], None)),
                f"{100 * gain['mean']:+.2f}{error}",
                "–" if paper is None else f"{paper[1] - paper[0]:+.2f}",
            )
        )
    return "\n".join(lines) + "\n"


def table4_page(record: Record) -> str:
    """TP-TopK by the warm-up's share of the steps (down) and of ε (across)."""
    lines = _head("data", "ε", "share of steps", *[f"{share:g} of ε" for share in table4.SHARES])
    places = {
        (row["dataset"], row["epsilon"], row["share_of_steps"], row["share_of_epsilon"]): row
        for row in record["rows"]
    }
    for dataset, epsilon in dict.fromkeys((row["dataset"], row["epsilon"]) for row in record["rows"]):
        for steps in table4.SHARES:
            rows = [places[dataset, epsilon, steps, budget] for budget in table4.SHARES]
            cells = [_percent(row, row["published"]) for row in rows]
            lines.append(_line(TITLES[dataset], f"{epsilon:g}", f"{steps:g}", *cells))
    return "\n".join(lines) + "\n"


def table5_page(record: Record) -> str:
    """AUC, balanced accuracy, sensitivity and specificity (the paper's, on EyePACS)."""
    names = ("AUC", "balanced accuracy", "sensitivity", "specificity")
    lines = _head("data", "method", "ε", *names)
    for row in record["rows"]:
        paper = row["published"] or (None,) * len(table5.MEASURES)
        cells = [_share(row[name], value) for name, value in zip(table5.MEASURES, paper, strict=True)]
        epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:g}"
        lines.append(_line(TITLES[row["dataset"]], TITLES[row["method"]], epsilon, *cells))
    return "\n".join(lines) + "\n"


def figure1_page(record: Record) -> str:
    """Share of the gradient energy inside the best coordinates, in hindsight and by the released score."""
    shown = (0.1, 0.2, 0.4)
    heads = [f"{kind} {ratio:.0%}" for ratio in shown for kind in ("best", "by score")]
    lines = _head("data", "ε", *heads)
    for row in record["rows"]:
        at = [row["ratios"].index(ratio) for ratio in shown]
        cells = [f"{row[kind][place]:.3f}" for place in at for kind in ("best", "by_score")]
        lines.append(_line(TITLES[row["dataset"]], f"{row['epsilon']:g}", *cells))
    return "\n".join(lines) + "\n"


def sparta_page(record: Record) -> str:
    """One table per task: ways to fine-tune down, ε across, with trained coordinates and seconds of a run."""
    parts = []
    for dataset in dict.fromkeys(row["dataset"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["dataset"] == dataset]
        epsilons = sorted({row["epsilon"] for row in rows})
        heads = [f"AUC, ε = {epsilon:g}" for epsilon in epsilons]
        lines = _head("method", *heads, "trained coordinates", "learning rates", "seconds")
        for method in dict.fromkeys(row["method"] for row in rows):
            own = {row["epsilon"]: row for row in rows if row["method"] == method}
            figures = [_share(own[e][sparta.MEASURE], None) if e in own else "" for e in epsilons]
            last = next(iter(own.values()))
            rates = dict.fromkeys(f"{own[e]['learning_rate']:g}" for e in sorted(own))
            lines.append(
                _line(
                    method,
                    *figures,
                    f"{last['active']:,}",
                    ", ".join(rates),
                    f"{sum(row['processor_seconds'] for row in own.values()) / len(own):.0f}",
                )
            )
        parts.append(f"**{TITLES[dataset]}**\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def images_page(record: Record) -> str:
    """The recipes, the field's best in brackets."""
    return images.page(record, TITLES)


def _head(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _percent(entry: Record, published: Any = None) -> str:
    figure = entry["accuracy"]
    text = f"{100 * figure['mean']:.2f}"
    if figure["deviation"] is not None:
        text += f" ± {100 * figure['deviation']:.2f}"
    return text if published is None else f"{text} ({published[0]:.2f})"


def _share(figure: Record, published: float | None) -> str:
    if figure["mean"] is None:
        return "–"
    text = f"{figure['mean']:.3f}"
    if figure["deviation"] is not None:
        text += f" ± {figure['deviation']:.3f}"
    return text if published is None else f"{text} ({published:.3f})"


PAGES = {
    table2.NAME: table2_page,
    table3.NAME: table3_page,
    table4.NAME: table4_page,
    table5.NAME: table5_page,
    "tp-topk/figure1": figure1_page,
    sparta.NAME: sparta_page,
    regime.NAME: sparta_page,
    **{table.NAME: networks_page for table in networks.TABLES},
    **{sweep.NAME: table3_page for sweep in network_sweeps.RATIO_SWEEPS},
    **{sweep.NAME: table4_page for sweep in network_sweeps.SPLIT_SWEEPS},
    images.NAME: images_page,
}
