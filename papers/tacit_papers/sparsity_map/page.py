"""The map as tables: differences to dense DP-SGD and to random supports, with what survives multiplicity marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tacit.errors import ArgumentError
from tacit_papers.sparsity_map.mapping import Difference, difference, holm

MARK = "✓"
_PLACE = re.compile(r"(<!-- map: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Record = dict[str, Any]


def comparisons(record: Record, base: str = "dense") -> dict[tuple[str, str, str], tuple[Difference, bool]]:
    """Every method − ``base`` by (part, setting, method), and whether Holm's rule shows it among all of them.

    With ``base`` "random" each TP-TopK of a fixed ratio is compared with the random support of that ratio.
    """
    found: dict[tuple[str, str, str], Difference] = {}
    for setting in record["settings"]:
        methods = {method["label"]: method["test"] for method in setting["methods"]}
        for label, test in methods.items():
            other = base if base == "dense" else f"random, {label.rsplit(', ', 1)[-1]}"
            if label != other and other in methods:
                found[setting["part"], setting["name"], label] = difference(test, methods[other])
    shown = holm([d.p for d in found.values()])
    return {key: (d, mark) for (key, d), mark in zip(found.items(), shown, strict=True)}


def tables(record: Record) -> dict[str, str]:
    """Markdown by part, and under "random" the gain of a learned over a random support."""
    against_dense = comparisons(record)
    parts = dict.fromkeys(setting["part"] for setting in record["settings"])
    made = {
        part: _table([s for s in record["settings"] if s["part"] == part], against_dense) for part in parts
    }
    return {**made, "random": _against_random(record)}


def _table(settings: Sequence[Record], compared: dict[tuple[str, str, str], tuple[Difference, bool]]) -> str:
    if len(settings) == 1:
        return _long(settings[0], compared)
    labels = [
        label
        for label in dict.fromkeys(m["label"] for s in settings for m in s["methods"])
        if label != "dense"
    ]
    lines = [f"| setting | d | dense | {' | '.join(labels)} |", "|---" * (len(labels) + 3) + "|"]
    for setting in settings:
        dense = next(m for m in setting["methods"] if m["label"] == "dense")
        cells = [_cell(compared.get((setting["part"], setting["name"], label))) for label in labels]
        lines.append(
            f"| {setting['name']} | {setting['coordinates']:,} | {_percent(dense)} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def _long(setting: Record, compared: dict[tuple[str, str, str], tuple[Difference, bool]]) -> str:
    lines = [f"{setting['name']}, d = {setting['coordinates']:,}:", ""]
    lines += ["| method | measure | − dense | active |", "|---|---|---|---|"]
    for method in setting["methods"]:
        cell = _cell(compared.get((setting["part"], setting["name"], method["label"])))
        share = float(np.mean(method["active"]))
        lines.append(f"| {method['label']} | {_percent(method)} | {cell} | {share:.2g} |")
    return "\n".join(lines) + "\n"


def _against_random(record: Record) -> str:
    lines = ["| setting | method | − random support of the same size |", "|---|---|---|"]
    for (_, name, label), entry in comparisons(record, "random").items():
        lines.append(f"| {name} | {label} | {_cell(entry)} |")
    return "\n".join(lines) + "\n"


def _percent(method: Record) -> str:
    return f"{100 * float(np.mean(method['test'])):.2f}"


def _cell(entry: tuple[Difference, bool] | None) -> str:
    if entry is None:
        return ""
    found, shown = entry
    return f"{found.mean:+.2f} ± {(found.high - found.low) / 2:.2f}" + (f" {MARK}" if shown else "")


def filled(page: str, record: Record) -> str:
    """The page with the tables of ``record`` between its marks ``<!-- map: PART -->`` and ``<!-- end -->``."""
    made = tables(record)

    def place(match: re.Match[str]) -> str:
        if match[2] not in made:
            raise ArgumentError(f"The page asks for a table {match[2]!r}; the map has {', '.join(made)}.")
        return f"{match[1]}{made[match[2]]}{match[3]}"

    return _PLACE.sub(place, page)


def lines(record: Record) -> Iterator[str]:
    """What the map says, in a few lines for a terminal."""
    for (part, name, label), (found, shown) in comparisons(record).items():
        if shown:
            yield f"{part}: {name}: {label} {found.mean:+.2f} points against dense"
