"""Write docs/results.md from docs/results/*.json: python -m tacit_papers.tp_topk.results_page.

A test keeps the page true. The JSON files come from ``tacit reproduce``; no figure on the page is typed by hand,
and neither is a verdict: what the page says about a table is computed from its numbers.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from tacit.jobs.summary import paired
from tacit_papers.pages import PAGES, TITLES

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "results.md"
FOLDER = DOCS / "results"

INTRODUCTION = """# Results

Written by `python -m tacit_papers.tp_topk.results_page` from the JSON files in `docs/results/`, which
`tacit reproduce` made; a test keeps the page true.
Every figure is a run of this code, none was edited. The paper is TP-TopK (Zhang and
Xie, 2026); its values stand in brackets.

**How it was measured.** δ = 1e-5, Poisson sampling, PLD accounting, add-or-remove-one neighbours. All methods
of a table share data, features, model, plan and seeds; seeds are paired, so that differences are taken run by
run. Where a table says so, each method chose its learning rate from the same three multiples of the recipe's,
on a tenth of the training data; then it was trained on all of it and measured on the test data once per seed. ±
is one standard deviation over seeds; for differences, the standard error of their mean.

**What ε does not cover.** The tuning. A table with three rates took three runs per method more, and the recipes
in `tacit.recipes` were found with some dozens of runs on the same splits. The data are public, so nobody was
harmed; on private data those runs would have to be paid for.

**Features.** The paper trains convolutional networks from scratch. Here a linear layer is trained on fixed features
(`tacit.data.features`): scattering coefficients (for MNIST, of the digit set upright), or responses to random patches
of synthetic images, all whitened by the statistics of synthetic images. No data set, public or private, went into them.
That is a different model from the paper's, so the comparison with the paper's columns says what can be reached at
this ε without public data; the comparison of methods is between our own columns.
"""

TITLES_OF_PARTS = {
    "tp-topk/table2": "Table 2: five methods, and the best recipe",
    "tp-topk/table3": "Table 3: active ratio",
    "tp-topk/table4": "Table 4: the warm-up's share",
    "tp-topk/table5": "Table 5: medical data",
    "tp-topk/figure1": "Figure 1: where the gradient's energy lies",
}
NOTES = {
    "tp-topk/table2": """MNIST was first measured with features `scattering-on-black` and stayed below the paper on the
test data at ε = 8. The step that sets digits upright was then found on a part of the training data.""",
    "tp-topk/table5": "APTOS stands in for EyePACS, the paper's images; values in brackets are for those, ε = 8.",
}
# Pages of results that are written elsewhere.
OTHERS = (
    ("where-sparsity-wins.md", "Where sparsity wins: methods by model size, ε, ratio and warm-up"),
    ("sparta.md", "SPARTA against other ways to fine-tune"),
    ("fedsel.md", "FedSel: Table 3 and the figures of its paper"),
    ("benchmarks.md", "What a private step costs"),
)


def page(folder: Path = FOLDER) -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, title in TITLES_OF_PARTS.items():
        path = folder / f"{name.rpartition('/')[2]}.json"
        if path.exists():
            parts.append(_part(title, json.loads(path.read_text(encoding="utf-8")), path))
    links = [f"- [{title}]({file})" for file, title in OTHERS]
    parts.append("## Other results\n\n" + "\n".join(links) + "\n")
    return "\n".join(parts)


def _part(title: str, record: dict[str, Any], path: Path) -> str:
    lines = [
        f"## {title}",
        "",
        f"`{record['command']}` at commit {record['commit']}, {record['processor_minutes']:g} processor minutes, "
        f"{record['seeds']} seeds. Numbers: [{path.name}](results/{path.name}).",
        "",
    ]
    if record["name"] in NOTES:
        lines += [NOTES[record["name"]], ""]
    image = path.with_suffix(".png")
    if image.exists():
        lines += [f"![{title}](results/{image.name})", ""]
    lines += [PAGES[record["name"]](record)]
    lines += [f"- {sentence}" for sentence in FINDINGS[record["name"]](record)]
    return "\n".join(lines) + "\n"


def table2_findings(record: dict[str, Any]) -> list[str]:
    """Who beats whom."""
    rows = record["rows"]
    compared = [row for row in rows if row["published_best"] is not None]
    beaten = [row for row in compared if 100 * row["recipe"]["accuracy"]["mean"] > row["published_best"]]
    margins = [100 * row["recipe"]["accuracy"]["mean"] - row["published_best"] for row in compared]
    said = [
        f"**Improved.** The best recipe is above the paper's best private entry in {len(beaten)} of "
        f"{len(compared)} cells; the margin is {min(margins):+.2f} to {max(margins):+.2f} points."
    ]
    missed = [f"{TITLES[row['dataset']]} at ε = {row['epsilon']:g}" for row in compared if row not in beaten]
    if missed:
        said.append(f"Not beaten: {', '.join(missed)}.")
    said.append(_against(rows, "tp-topk", "tp-rand", "the learned support against a random one"))
    said.append(_against(rows, "tp-topk", "dp-sgd", "sparse against dense training"))
    said.append(_against(rows, "on-topk", "on-rand", "the learned online support against a random one"))
    return said


def _against(rows: list[dict[str, Any]], one: str, other: str, about: str) -> str:
    """Paired differences over all cells, and in how many cells they exceed twice their standard error."""
    above = below = 0
    means = []
    for row in rows:
        values = [row["methods"][method]["accuracy"]["values"] for method in (one, other)]
        found = paired([100 * (a - b) for a, b in zip(*values, strict=True)])
        means.append(found.mean)
        above += found.mean > 2 * found.deviation
        below += found.mean < -2 * found.deviation
    paper = [
        row["methods"][one]["published"][0] - row["methods"][other]["published"][0]
        for row in rows
        if row["methods"][one]["published"] and row["methods"][other]["published"]
    ]
    published = f" (paper: {min(paper):+.2f} to {max(paper):+.2f})" if paper else ""
    verdict = (
        "**Confirmed**" if above > len(rows) / 2 else "**Not confirmed**" if above <= below else "Partly"
    )
    return (
        f"{verdict}: {about}. {TITLES[one]} − {TITLES[other]} is {min(means):+.2f} to {max(means):+.2f} points, "
        f"{sum(means) / len(means):+.2f} on average{published}; above twice its standard error in {above}, below minus "
        f"that in {below} of {len(rows)} cells."
    )


def table3_findings(record: dict[str, Any]) -> list[str]:
    """Does the gain grow as the support shrinks?"""
    said = []
    for dataset, epsilon in dict.fromkeys((row["dataset"], row["epsilon"]) for row in record["rows"]):
        own = [row for row in record["rows"] if (row["dataset"], row["epsilon"]) == (dataset, epsilon)]
        own.sort(key=lambda row: row["active_ratio"])
        gains = [100 * row["gain"]["mean"] for row in own]
        beyond_noise = own[0]["gain"]["mean"] > 2 * (own[0]["gain"]["error"] or math.inf)
        falls = all(a > b for a, b in pairwise(gains)) and beyond_noise
        verdict = "**Confirmed**" if falls else "**Not confirmed**"
        said.append(
            f"{verdict} on {TITLES[dataset]} at ε = {epsilon:g}: the gain exceeds noise at the smallest ratio and "
            f"falls as the ratio grows. Here it is {', '.join(f'{gain:+.2f}' for gain in gains)} points."
        )
    return said


def table4_findings(record: dict[str, Any]) -> list[str]:
    """Where the best split lies, and whether it matters."""
    said = []
    for dataset, epsilon in dict.fromkeys((row["dataset"], row["epsilon"]) for row in record["rows"]):
        own = [row for row in record["rows"] if (row["dataset"], row["epsilon"]) == (dataset, epsilon)]
        best = max(own, key=lambda row: row["accuracy"]["mean"])
        low = min(row["accuracy"]["mean"] for row in own)
        spread = 100 * (best["accuracy"]["mean"] - low)
        inside = (best["share_of_steps"], best["share_of_epsilon"]) == (0.3, 0.3)
        said.append(
            f"{'**Confirmed**' if inside else '**Not confirmed**'} on {TITLES[dataset]} at ε = {epsilon:g}: best at "
            f"(0.3, 0.3). Here the best split is ({best['share_of_steps']:g}, {best['share_of_epsilon']:g}), and "
            f"best and worst differ by {spread:.2f} points (paper: 1.93)."
        )
    return said


def table5_findings(record: dict[str, Any]) -> list[str]:
    """Does dense DP-SGD collapse, and does sparsity mend it?"""
    said = []
    private = [row for row in record["rows"] if row["epsilon"] is not None]
    for dataset, epsilon in dict.fromkeys((row["dataset"], row["epsilon"]) for row in private):
        own = {
            row["method"]: row for row in private if (row["dataset"], row["epsilon"]) == (dataset, epsilon)
        }
        values = [own[method]["auc"]["values"] for method in ("tp-topk", "dp-sgd")]
        found = paired([a - b for a, b in zip(*values, strict=True)])
        collapsed = min(own["dp-sgd"][name]["mean"] for name in ("sensitivity", "specificity")) < 0.1
        said.append(
            f"{TITLES[dataset]}, ε = {epsilon:g}: dense DP-SGD {'collapses' if collapsed else 'does not collapse'} "
            f"to one class; AUC of TP-TopK − DP-SGD is {found.mean:+.4f} ± {found.deviation:.4f}."
        )
    return said


def figure1_findings(record: dict[str, Any]) -> list[str]:
    """How concentrated energy is, and how much of it is found."""
    said = [
        "NOT PRIVATE: true gradients after the warm-up, for analysis only. A random support captures its own ratio."
    ]
    for row in record["rows"]:
        tenth, forty = row["ratios"].index(0.1), row["ratios"].index(0.4)
        said.append(
            f"{TITLES[row['dataset']]}, ε = {row['epsilon']:g}: the best tenth of the coordinates holds "
            f"{row['best'][tenth]:.1%} of the energy (paper: {record['published_top_tenth']:.1%}); at ρ = 0.4 the "
            f"score captures {row['by_score'][forty]:.2f} where {row['best'][forty]:.2f} is possible."
        )
    return said


FINDINGS = {
    "tp-topk/table2": table2_findings,
    "tp-topk/table3": table3_findings,
    "tp-topk/table4": table4_findings,
    "tp-topk/table5": table5_findings,
    "tp-topk/figure1": figure1_findings,
}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Written to {PAGE}.")
