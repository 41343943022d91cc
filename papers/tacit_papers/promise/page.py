"""What the measurement says: differences to dense training with intervals, and whether the promise is kept."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tacit.errors import ArgumentError
from tacit_papers.sparsity_map.mapping import Difference, difference

ALLOWED = -0.2
"""Points of AUC that the mean over seeds may fall below dense."""
_PLACE = re.compile(r"(<!-- promise: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Record = dict[str, Any]


def differences(answer: Record) -> dict[str, Difference]:
    """Automatic and soft − dense, in points of AUC."""
    methods = answer["methods"]
    return {name: difference(methods[name]["auc"], methods["dense"]["auc"]) for name in ("auto", "soft")}


def broken(record: Record) -> list[str]:
    """Where the promise is not kept, in words."""
    return [
        f"{answer['table']}, {answer['model']}, ε = {answer['epsilon']:g}: {name} {found.mean:+.2f}"
        for answer in record["answers"]
        for name, found in differences(answer).items()
        if found.mean < ALLOWED
    ]


def tables(record: Record) -> dict[str, str]:
    """Markdown by part, and the summary in one sentence."""
    made = {
        part: _table([answer for answer in record["answers"] if answer["part"] == part])
        for part in dict.fromkeys(answer["part"] for answer in record["answers"])
    }
    return {**made, "summary": summary(record) + "\n"}


def _table(answers: list[Record]) -> str:
    lines = [
        "| table | rows | model | d | ε | dense | auto − dense | active | soft − dense |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for answer in answers:
        dense = 100 * float(np.mean(answer["methods"]["dense"]["auc"]))
        found = differences(answer)
        active = float(np.mean(answer["methods"]["auto"]["active"]))
        lines.append(
            f"| {answer['table']} | {answer['rows']:,} | {answer['model']} | {answer['coordinates']:,} | "
            f"{answer['epsilon']:g} | {dense:.2f} | {_cell(found['auto'])} | {active:.2g} | {_cell(found['soft'])} |"
        )
    return "\n".join(lines) + "\n"


def _cell(found: Difference) -> str:
    if found.mean == found.low == found.high == 0:
        return "0"
    return f"{found.mean:+.2f} ± {(found.high - found.low) / 2:.2f}"


def summary(record: Record) -> str:
    """How many comparisons there are, the worst of each method, and how often each is shown to be above dense."""
    parts = []
    for name in ("auto", "soft"):
        found = [(differences(answer)[name], answer) for answer in record["answers"]]
        worst, where = min(found, key=lambda pair: pair[0].mean)
        best, there = max(found, key=lambda pair: pair[0].mean)
        above = sum(one.low > 0 for one, _ in found)
        below = sum(one.high < 0 for one, _ in found)
        parts.append(
            f"{name}: worst {worst.mean:+.2f} ({where['table']}, {where['model']}, ε = {where['epsilon']:g}), best "
            f"{best.mean:+.2f} ({there['table']}, {there['model']}, ε = {there['epsilon']:g}); its 95 % interval lies "
            f"above 0 in {above} and below 0 in {below} of {len(found)}"
        )
    kept = "No mean is" if not broken(record) else f"{len(broken(record))} means are"
    return (
        f"{kept} more than {-ALLOWED:g} points below dense. "
        + ". ".join(f"{part[0].upper()}{part[1:]}" for part in parts)
        + "."
    )


def filled(page: str, record: Record) -> str:
    """The page with the tables of ``record`` between its marks."""
    made = tables(record)

    def place(match: re.Match[str]) -> str:
        if match[2] not in made:
            raise ArgumentError(f"The page asks for {match[2]!r}; the record has {', '.join(made)}.")
        return f"{match[1]}{made[match[2]]}{match[3]}"

    return _PLACE.sub(place, page)
