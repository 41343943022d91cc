"""The audit of a run, where there is one: an empirical lower bound beside the claimed ε."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report.markup import Markup, element
from tacit.report.reading import RunView
from tacit.report.scale import number
from tacit.report.sections.layout import note, section
from tacit.report.tables import facts, listed

_LEFT_OUT = ("format", "version", "curves")


def audit(run: RunView, key: str, level: int) -> Markup | None:
    """Everything that the run's audit file says in plain values."""
    if run.audit is None:
        return None
    return section(
        f"{key}-audit",
        "Audit",
        level,
        element(
            "p",
            "An audit attacks the run and states what ε it could at least show. It can find that a claim is "
            "false; it cannot prove that one is true.",
        ),
        facts([(_words(name), _shown(value)) for name, value in run.audit.items() if name not in _LEFT_OUT]),
        note("Read from the audit file in the run directory; this page does not repeat the attack."),
    )


def _words(name: str) -> str:
    return name.replace("_", " ").replace("epsilon", "ε").replace("delta", "δ")


def _shown(value: Any) -> Markup | str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(float(value))
    if isinstance(value, Mapping):
        return facts([(_words(str(name)), _shown(item)) for name, item in value.items()])
    if isinstance(value, list):
        many = 8
        shown = [_shown(item) for item in value[:many]]
        return listed([*shown, f"… {len(value) - many} more"] if len(value) > many else shown)
    return "–" if value is None else str(value)
