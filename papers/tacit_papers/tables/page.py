"""The comparison as a page: who is ahead, by how much, where Tacit loses, and what a fit costs. All from the record."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tacit_papers.tables.cells import EPSILONS
from tacit_papers.tables.methods import DELTA, METHODS, WIDE

Record = Mapping[str, Any]
OWN, RIVAL = "tacit", "dp-ebm"
SEEN = (
    *("adult", "adult-wide", "bank", "kdd99", "diabetes130", "nhanes", "breast-cancer", "digits"),
    *("lending-club", "wa-churn", "nass-cds", "spam7", "email"),
)
"""Tables that the repository uses elsewhere, and those on which the soft form was developed."""


def by_seed(record: Record, table: str, method: str, epsilon: float) -> dict[int, float]:
    """The AUC of every seed that was recorded; of a method without privacy, whatever ε is."""
    epsilon = epsilon if METHODS[method].private else 0.0
    return {
        entry["seed"]: entry["auc"]
        for entry in record["cells"]
        if (entry["table"], entry["method"], entry["epsilon"]) == (table, method, epsilon)
    }


def mean(record: Record, table: str, method: str, epsilon: float) -> float | None:
    """The mean AUC, in points; None where nothing was recorded."""
    found = by_seed(record, table, method, epsilon)
    return 100 * float(np.mean(list(found.values()))) if found else None


def differences(record: Record, epsilon: float, other: str = RIVAL, own: str = OWN) -> dict[str, float]:
    """Tacit minus another method in points, by table: the mean over the seeds that were recorded of both."""
    found = {}
    for table in record["tables"]:
        one, two = by_seed(record, table, own, epsilon), by_seed(record, table, other, epsilon)
        both = one.keys() & two.keys()
        if both:
            found[table] = 100 * float(np.mean([one[seed] - two[seed] for seed in both]))
    return found


def page(record: Record) -> str:
    """The whole page."""
    seeds = sorted({len(by_seed(record, *place)) for place in _places(record)})
    few = (
        ""
        if not seeds or seeds[0] >= 5
        else f" **Incomplete: some figures rest on {seeds[0]} seed(s) only.**"
    )
    return "\n".join(
        [
            "# Private models for tables, compared",
            "",
            "<!-- Written by tacit reproduce tables from tables.json; do not edit. -->",
            "",
            f"`tacit reproduce tables` fits every method with its defaults on {len(record['tables'])} tables of two "
            f"classes, δ = {DELTA:g}, and measures the AUC on rows that no method has seen. For each seed a quarter of "
            "the rows is held out, the same for all methods; nothing is tuned on them. Figures are means over seeds, "
            "in points (100 × AUC)." + few,
            "",
            "![AUC by ε, one panel per table](tables.png)",
            "",
            "## In short",
            "",
            *_short(record),
            "",
            *(line for epsilon in EPSILONS for line in _table(record, epsilon)),
            "## Where Tacit loses",
            "",
            *_losses(record),
            "",
            "## What a fit costs",
            "",
            *_costs(record),
            "",
            "## The tables",
            "",
            *_about(record),
            "",
            "## Methods",
            "",
            *_methods(record),
            "",
        ]
    )


def _places(record: Record) -> Iterator[tuple[str, str, float]]:
    yield from dict.fromkeys((e["table"], e["method"], e["epsilon"]) for e in record["cells"])


def _short(record: Record) -> Iterator[str]:
    for epsilon in EPSILONS:
        found = differences(record, epsilon)
        if found:
            ahead = sum(value > 0 for value in found.values())
            worst = min(found, key=lambda table: found[table])
            yield (
                f"- ε = {epsilon:g}: Tacit is above DP-EBM on {ahead} of {len(found)} tables, by "
                f"{_average(found):+.1f} points on average; worst on {worst} ({found[worst]:+.1f})."
            )
    soft = [v for e in EPSILONS for v in differences(record, e, own="tacit-soft", other=OWN).values()]
    if soft:
        yield (
            f"- The soft form is {np.mean(soft):+.1f} points from the dense default on average, between "
            f"{min(soft):+.1f} and {max(soft):+.1f}."
        )
    large = {
        table: value
        for table, value in differences(record, 3.0, other="logistic").items()
        if record["tables"][table]["rows"] >= 20_000
    }
    if large:
        shown = ", ".join(f"{table} {value:+.1f}" for table, value in large.items())
        yield f"- Tacit at ε = 3 minus logistic regression without privacy, tables of at least 20,000 rows: {shown}."
    falls = [
        f"{table} ({mean(record, table, OWN, one):.1f} at ε = {one:g}, {mean(record, table, OWN, two):.1f} at {two:g})"
        for table in record["tables"]
        for one, two in itertools.pairwise(EPSILONS)
        if _falls(record, table, one, two)
    ]
    yield (
        "- AUC of Tacit falls by more than 0.3 points from one ε to the next larger one on "
        + (", ".join(falls) if falls else "no table")
        + "."
    )


def _average(by_table: Mapping[str, float]) -> float:
    return float(np.mean(list(by_table.values())))


def _falls(record: Record, table: str, one: float, two: float) -> bool:
    pair = mean(record, table, OWN, one), mean(record, table, OWN, two)
    return pair[0] is not None and pair[1] is not None and pair[1] < pair[0] - 0.3


def _table(record: Record, epsilon: float) -> Iterator[str]:
    shown = [m for m in METHODS if any(e["method"] == m for e in record["cells"])]
    yield f"## ε = {epsilon:g}"
    yield ""
    yield "| table | " + " | ".join(METHODS[m].label for m in shown) + " |"
    yield "|---|" + "--:|" * len(shown)
    for table in record["tables"]:
        found = {m: mean(record, table, m, epsilon) for m in shown}
        private = [v for m, v in found.items() if v is not None and METHODS[m].private]
        best = max(private, default=None)
        yield (
            f"| {table} | "
            + " | ".join(_number(found[m], bold=METHODS[m].private and found[m] == best) for m in shown)
            + " |"
        )
    yield ""


def _number(value: float | None, *, bold: bool) -> str:
    if value is None:
        return ""
    return f"**{value:.1f}**" if bold else f"{value:.1f}"


def _losses(record: Record) -> Iterator[str]:
    lines = []
    for epsilon in EPSILONS:
        for other, method in METHODS.items():
            if method.private and not other.startswith(OWN):
                for table, value in differences(record, epsilon, other=other).items():
                    if value < 0:
                        lines.append(
                            (value, f"- {table}, ε = {epsilon:g}: {-value:.1f} points below {method.label}.")
                        )
    yield from (line for _, line in sorted(lines)) if lines else ["Nowhere against a private method."]
    for epsilon in (1.0, 8.0):
        gap = differences(record, epsilon, other="boosting")
        if gap:
            yield (
                f"- Against boosted trees without privacy at ε = {epsilon:g}: {_average(gap):+.1f} points on average, "
                f"{min(gap.values()):+.1f} at worst. An additive model has no interactions between columns."
            )


def _costs(record: Record) -> Iterator[str]:
    shown = [m for m in METHODS if any(e["method"] == m for e in record["cells"])]
    yield "Seconds of one core per fit, with predictions; mean over ε and seeds, on a shared machine."
    yield ""
    yield "| table | " + " | ".join(METHODS[m].label for m in shown) + " |"
    yield "|---|" + "--:|" * len(shown)
    for table in record["tables"]:
        cells = []
        for method in shown:
            found = [e["seconds"] for e in record["cells"] if (e["table"], e["method"]) == (table, method)]
            cells.append(f"{np.mean(found):.1f}" if found else "")
        yield f"| {table} | " + " | ".join(cells) + " |"


def _about(record: Record) -> Iterator[str]:
    yield "| table | predicted | rows | columns | features | positive | seen before |"
    yield "|---|---|--:|--:|--:|--:|---|"
    for name, about in record["tables"].items():
        used = "yes" if name in SEEN else "no"
        yield (
            f"| {name} | {about['about']} | {about['rows']:,} | {about['columns']} | {about['features']} | "
            f"{100 * about['positive']:.1f} % | {used} |"
        )
    yield ""
    yield (
        "Features are those of a linear model. **Seen before**: the table may have been used while Tacit's defaults "
        "were made ([tables without settings](../guide/tables.md#where-the-rule-comes-from)), which may flatter them. "
        "This counts every table that the repository uses elsewhere and those on which the soft form was developed. No "
        "list was kept of the eleven tables on which the first rule was fitted, so *no* means: not known to be one."
    )


def _methods(record: Record) -> Iterator[str]:
    yield (
        "- **Tacit**: `tacit.PrivateClassifier(epsilon)`, which does what `tacit train` does. **Soft**: with "
        '`settings={"method": {"name": "tp-topk", "active_ratio": "soft"}}`. No schema is given.'
    )
    yield (
        "- **DP-EBM**: `DPExplainableBoostingClassifier` of `interpret-core` 0.7.8. Missing values are filled in "
        "beforehand."
    )
    reason = record.get("without_diffprivlib")
    if reason:
        yield (
            "- **diffprivlib** 0.6.6 is not compared: with the scikit-learn that is installed here it cannot be "
            f"imported (`{reason}`)."
        )
    else:
        yield "- **diffprivlib**: its logistic regression, on scaled numbers and one-hot categories."
    yield (
        "- **DP Frank–Wolfe**, **DP greedy coordinates**: written for this comparison "
        f"(`tacit_papers/tables/linear.py`, accounted for by zCDP), on tables of at least {WIDE} features. They have "
        "no published defaults: steps are (ε · rows)^⅔ / 5, from 10 to 400, and the radius is 10, after a look at one "
        "split of adult-wide, which favours them there."
    )
    yield "- **Without privacy**: scikit-learn's `LogisticRegression` and `HistGradientBoostingClassifier`."
    yield ""
    yield (
        "Tacit and DP-EBM take what nobody declares (ranges, categories) as each does by default; Tacit's certificate "
        "says what ε does not cover."
    )


def short_table(record: Record, *, least_tables: int = 12, least_seeds: int = 5) -> str:
    """Mean AUC by method and ε over the tables on which all of these methods were recorded, for the README.

    A few tables, or a few seeds, would be a choice and not a result: then it says so instead.
    """
    left_out = (
        "diffprivlib",
        "tacit-soft",
    )  # one does not import everywhere, the other has a page of its own
    everywhere = [name for name, method in METHODS.items() if not method.wide and name not in left_out]
    tables = [
        table
        for table in record["tables"]
        if all(
            len(by_seed(record, table, method, epsilon)) >= least_seeds
            for method in everywhere
            for epsilon in EPSILONS
        )
    ]
    if len(tables) < least_tables:
        return f"Not recorded yet: {len(tables)} tables are complete, and this needs {least_tables}.\n"
    lines = [
        f"| mean AUC, {len(tables)} tables | "
        + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
        + " |",
        "|---|" + "--:|" * len(EPSILONS),
    ]
    for method in everywhere:
        means = [[mean(record, table, method, epsilon) or 0.0 for table in tables] for epsilon in EPSILONS]
        label = METHODS[method].label + ("" if METHODS[method].private else ", not private")
        lines.append(f"| {label} | " + " | ".join(f"{np.mean(row) / 100:.3f}" for row in means) + " |")
    ahead = [sum(differences(record, epsilon).get(table, 0) > 0 for table in tables) for epsilon in EPSILONS]
    lines.append("| tables on which Tacit is above DP-EBM | " + " | ".join(map(str, ahead)) + " |")
    return "\n".join(lines) + "\n"
