"""What ``tacit reproduce sparta/regime`` found: a section of docs/results/sparta.md, computed from its numbers."""

from __future__ import annotations

from typing import Any

from tacit_papers.pages import PAGES, TITLES
from tacit_papers.sparsity_map.mapping import difference
from tacit_papers.sparta.efficientnet import IMAGE_SIZE
from tacit_papers.sparta.regime import (
    HEAD_EPOCHS,
    MEASURE,
    RATES,
    RATIO,
    REGIMES,
    SELECTION_EPOCHS,
    TRAINING,
    WAYS,
    Regime,
)

RULE = "A private choice of rows beats random rows if the 95 % interval of the paired difference lies above zero."


PRIVATE = {"sparta": "SPARTA", "sparta, votes": "SPARTA by votes"}
"""The ways that choose rows privately."""


def section(record: dict[str, Any]) -> str:
    """The section in Markdown."""
    parts = [_introduction(record)]
    for dataset in dict.fromkeys(row["dataset"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["dataset"] == dataset]
        table = PAGES[record["name"]]({**record, "rows": rows})
        parts.append(
            "\n".join([table, *(f"- {line}" for line in findings(rows, REGIMES[dataset].rates))]) + "\n"
        )
    fewer = [TITLES[name] for name, regime in REGIMES.items() if regime.ways is not None]
    parts.append(f"Fewer ways, since a run takes long: {', '.join(fewer)}.\n")
    parts.append(in_short(record["rows"]) + "\n")
    parts.append(over_head(record["rows"]) + "\n")
    missing = [TITLES[name] for name in REGIMES if name not in {row["dataset"] for row in record["rows"]}]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _introduction(record: dict[str, Any]) -> str:
    regimes = {name: REGIMES[name] for name in dict.fromkeys(row["dataset"] for row in record["rows"])}
    trained = "\n".join(f"- {TITLES[name]}: {_regime(regime)}" for name, regime in regimes.items())
    return f"""## Two classes, a far domain

A replication of eleven papers (ACSAC 2024) finds that a trained subset beats the head where classes are few, data
enough and the domain far. So: two classes that are often taken for each other, in grey images of 28 x 28 pixels, for
networks that were trained on photographs. Images are resized to {IMAGE_SIZE} x {IMAGE_SIZE} pixels.
{RULE}

{trained}

`{record["command"]}` at commit {record["commit"]}, {record["processor_minutes"]:g} processor minutes,
{record["seeds"]} seeds. Batches of {TRAINING.batch_size}, {TRAINING.epochs:g} epochs, ρ = {RATIO:g}; of these epochs
SPARTA spends {HEAD_EPOCHS:g} on the head and {SELECTION_EPOCHS:g} on selection. At each
ε every way chose its rate from the same grid by AUC with one seed, on a tenth of the
training data. *sparta, votes* chooses rows by votes (four of each layer). Every run:
`papers/results/regime/runs`; the command with `--out papers/results/regime` continues from them, so the commit is that
of the last runs. Intervals are Student's, over seeds, and not corrected for the number of comparisons.
"""


def _regime(regime: Regime) -> str:
    network, blocks = ("MobileNetV2", 19) if regime.network is None else ("EfficientNet-Lite0", 18)
    examples = "all examples" if regime.examples is None else f"{regime.examples:,} examples"
    rates = ", ".join(f"{rate:g}" for rate in regime.rates)
    why = (
        ""
        if regime.network is None
        else " Blocks and examples were fixed by the cost of a run, before any was measured. The greatest rate was "
        "added for every way after the runs at ε = 2, where last-layer had chosen the greatest of the others."
    )
    return f"{network}, {regime.frozen_blocks} of {blocks} blocks frozen, {examples}, rates {rates}.{why}"


def findings(rows: list[dict[str, Any]], rates: tuple[float, ...] = RATES) -> list[str]:
    """Private choices of rows against every other way, and what is best, ε by ε."""
    said = []
    for epsilon in sorted({row["epsilon"] for row in rows}):
        own = {row["method"]: row for row in rows if row["epsilon"] == epsilon}
        for one, title in ((way, title) for way, title in PRIVATE.items() if way in own):
            for other in (way for way in WAYS if way not in PRIVATE and way in own):
                found = difference(own[one][MEASURE]["values"], own[other][MEASURE]["values"])
                verdict = _verdict(found.low, found.high)
                said.append(
                    f"ε = {epsilon:g}: {title} {verdict} {other}, {found.mean:+.2f} points of AUC ({found.low:+.2f} to "
                    f"{found.high:+.2f})."
                )
        best = max(own, key=lambda way: own[way][MEASURE]["mean"])
        said.append(f"ε = {epsilon:g}: the highest mean is that of {best}.")
        edge = [way for way, row in own.items() if row["learning_rate"] in (min(rates), max(rates))]
        if edge:
            said.append(f"ε = {epsilon:g}: the chosen rate is at the edge of the grid for {', '.join(edge)}.")
    return said


def in_short(rows: list[dict[str, Any]]) -> str:
    """Whether a private choice of rows beats a random one anywhere."""
    won, lost, cells = [], 0, 0
    for place in dict.fromkeys((row["dataset"], row["epsilon"]) for row in rows):
        own = {row["method"]: row for row in rows if (row["dataset"], row["epsilon"]) == place}
        for one in (way for way in PRIVATE if way in own):
            found = difference(own[one][MEASURE]["values"], own["random-rows"][MEASURE]["values"])
            cells, lost = cells + 1, lost + (found.high < 0)
            if found.low > 0:
                won.append(f"{PRIVATE[one]} on {TITLES[place[0]]} at ε = {place[1]:g}")
    where = f": {'; '.join(won)}" if won else ""
    return (
        f"**Does a private choice of rows beat random rows?** In {len(won)} of {cells} comparisons{where}; in {lost} "
        "it loses, in the others no difference is shown."
    )


def over_head(rows: list[dict[str, Any]]) -> str:
    """Whether ways that train rows beat the last layer alone, task by task."""
    said = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows if row["method"] == "last-layer"):
        own = {(row["epsilon"], row["method"]): row for row in rows if row["dataset"] == dataset}
        found = [
            difference(row[MEASURE]["values"], own[epsilon, "last-layer"][MEASURE]["values"])
            for (epsilon, way), row in own.items()
            if way != "last-layer"
        ]
        means = [one.mean for one in found]
        said.append(
            f"{TITLES[dataset]}: in {sum(one.low > 0 for one in found)} of {len(found)} comparisons, and it loses in "
            f"{sum(one.high < 0 for one in found)} (means from {min(means):+.2f} to {max(means):+.2f} points of AUC)."
        )
    return " ".join(["**Does training rows beat the last layer alone?**", *said])


def _verdict(low: float, high: float) -> str:
    return "beats" if low > 0 else "loses to" if high < 0 else "is not told apart from"
