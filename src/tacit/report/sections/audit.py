"""The audit of a run, where there is one: lower bounds on ε beside the claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacit.report.markup import Markup, bar, element, grid, joined, note, section, table
from tacit.report.plot import Plot, Series, draw, number, share
from tacit.report.reading import RunView, as_number
from tacit.report.sections.promise import Status, shown

_FORMAT, _VERSION = "tacit-audit", 1
_MOST = 40
_CURVES = ("claimed", "measured", "lower")
_FIGURES = {
    "trials": "trials",
    "guesses": "guesses",
    "right": "right",
    "confidence": "confidence",
    "claimed": "epsilon_claimed",
    "lower": "epsilon_lower",
}


@dataclass(frozen=True)
class _Finding:
    """One audited claim, as far as the page shows it."""

    name: str
    trials: float
    guesses: float
    right: float
    confidence: float
    claimed: float
    lower: float
    curves: Mapping[str, list[tuple[float, float]]]


def audit(run: RunView, key: str, level: int) -> Markup | None:
    """What ``tacit audit`` wrote to the run directory."""
    record = run.audit
    if record is None:
        return None
    findings = _findings(record)
    if findings is None:
        return section(
            f"{key}-audit", "Audit", level, note("The audit in the run directory is not of this version.")
        )
    sound = record.get("holds") is True and all(f.lower <= f.claimed for f in findings)
    word = "No claim is contradicted" if sound else "A claim is broken"
    told = record.get("verdict")
    sentence = told.removeprefix(f"{word}: ") if isinstance(told, str) else ""
    status = Status("ok" if sound else "bad", word, sentence[:1].upper() + sentence[1:])
    whole = next((f for f in findings if f.name.startswith("run ") and f.curves), None)
    return section(
        f"{key}-audit",
        "Audit",
        level,
        element(
            "p",
            "An audit plants worst-case examples, guesses from what is released which of them took part, and "
            "turns the right guesses into a lower bound on ε. It can show that a claim is false; it cannot "
            "prove that one is true.",
        ),
        shown(status),
        grid(_table(findings, key), None if whole is None else _curves(whole, key)),
    )


def _findings(record: Mapping[str, Any]) -> list[_Finding] | None:
    found = record.get("findings")
    if record.get("format") != _FORMAT or record.get("version") != _VERSION or not isinstance(found, list):
        return None
    curves = record.get("curves")
    # One entry per finding; without that, no curve can be said to belong to one.
    drawn = curves if isinstance(curves, list) and len(curves) == len(found) else [None] * len(found)
    read = [_finding(entry, lines) for entry, lines in list(zip(found, drawn, strict=True))[:_MOST]]
    return None if not read or None in read else [finding for finding in read if finding is not None]


def _finding(entry: Any, lines: Any) -> _Finding | None:
    if not isinstance(entry, Mapping):
        return None
    curves = {
        name: points
        for name in _CURVES
        if isinstance(lines, Mapping) and (points := _points(lines.get(name)))
    }
    figures = {name: as_number(entry.get(source)) for name, source in _FIGURES.items()}
    known = {name: figure for name, figure in figures.items() if figure is not None}
    if len(known) < len(_FIGURES):
        return None
    name = f"{entry.get('kind')} {entry.get('name')}"
    return _Finding(name, **known, curves=curves if len(curves) == len(_CURVES) else {})


def _points(curve: Any) -> list[tuple[float, float]]:
    """The points of a curve, from left to right; none where any of them is not two shares."""
    if not isinstance(curve, list):
        return []
    points = []
    for pair in curve:
        x, y = map(as_number, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if x is None or y is None or not (0 <= x <= 1 and 0 <= y <= 1):
            return []
        points.append((x, y))
    return sorted(points, key=lambda point: (point[0], -point[1]))


def _table(findings: list[_Finding], key: str) -> Markup:
    rows = [
        (
            joined(
                finding.name,
                element(
                    "span", f"{finding.right:,.0f} of {finding.guesses:,.0f} guesses right", class_="detail"
                ),
            ),
            bar(finding.lower / finding.claimed if finding.claimed > 0 else 0.0, 1),
            number(finding.lower, 3),
            number(finding.claimed, 3),
        )
        for finding in findings
    ]
    title = "Lower bound on ε beside the claim"
    levels = sorted({finding.confidence for finding in findings})
    return element(
        "figure",
        element("figcaption", title),
        table(("Audited", "", "At least", "Claimed"), rows, title, kind="bars"),
        note(f"Confidence of each lower bound: {', '.join(share(level) for level in levels)}."),
        class_="plot tabular",
        id=f"{key}-bounds",
    )


def _curves(finding: _Finding, key: str) -> Markup:
    """False alarms and misses that the claim allows, and those that the audit reached."""
    lines = (
        ("what the claim allows", "claimed", 1, False),
        ("reached by the audit", "measured", 2, False),
        ("lower bound", "lower", 3, True),
    )
    series = [
        Series(
            name,
            [x for x, _ in finding.curves[curve]],
            [y for _, y in finding.curves[curve]],
            style,
            dashed,
        )
        for name, curve, style, dashed in lines
    ]
    summary = (
        f"Over {finding.trials:,.0f} trials on the whole run the audit shows ε ≥ {number(finding.lower, 3)} "
        f"where {number(finding.claimed, 3)} is claimed. Chance apart, no attack comes below the curve that the "
        "claim allows; a coin lies on the diagonal."
    )
    return draw(
        Plot(
            "Errors of an attacker on the whole run",
            summary,
            "false alarms",
            "misses",
            [*series, Series("a coin", [0.0, 1.0], [1.0, 0.0], 6, True)],
            x_range=(0, 1),
            y_range=(0, 1.03),
            x_format=lambda value: share(value, 0),
            y_format=lambda value: share(value, 0),
            note=summary,
        ),
        f"{key}-tradeoff",
    )
