"""What was spent and on which settings; the list of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.report.markup import Markup, element, section, table
from tacit.report.plot import Mark, Plot, Series, draw, number
from tacit.report.reading import RunView

_NAMED_PHASES = 4


def spending_figure(run: RunView, key: str) -> Markup | None:
    """The curve of ε, or ``None`` where the ledger could not be read or the run adds no noise."""
    spending = run.spending
    if spending is None or not all(map(math.isfinite, spending.epsilons)):
        return None
    spent, charged = spending.epsilons[-1], spending.releases[-1]
    phases = _phase_borders(run)
    deviates = any(
        not math.isclose(a, b, rel_tol=1e-9)
        for a, b in zip(spending.epsilons, spending.planned, strict=False)
    )
    series = [
        Series("planned", spending.releases[: len(spending.planned)], spending.planned, 6, dashed=True),
        Series("spent", spending.releases, spending.epsilons),
    ]
    summary = (
        f"ε spent rises from 0 to {number(spent)} over {charged:,} charged releases; "
        f"{number(run.plan.epsilon)} is promised. "
    )
    if deviates or charged > run.plan.steps:
        summary += "It departs from the plan: version 0.1 of Tacit chose new noise after a crash."
    else:
        summary += "It follows the plan."
    promised = [Mark(run.plan.epsilon, "promised", 2)] if math.isfinite(run.plan.epsilon) else []
    return draw(
        Plot(
            "Privacy spent",
            summary,
            "charged releases",
            "ε",
            series,
            horizontals=promised,
            borders=phases,
            x_range=(0, max(charged, run.plan.steps)),
            y_range=(0, 1.08 * max(spent, run.plan.epsilon if promised else spent, 1e-9)),
            note=[element("span", summary)],
        ),
        f"{key}-epsilon",
    )


def _phase_borders(run: RunView) -> list[tuple[float, str]]:
    """Where phases end, named where there are few."""
    assert run.spending is not None
    ends = run.spending.phase_ends
    names = [phase.name for phase in run.plan.phases]
    if len(names) > _NAMED_PHASES or len(ends) != len(names):
        return [(end, "") for end in ends[:-1]] if len(ends) <= 40 else []
    return [(end, name) for end, name in zip(ends[:-1], names, strict=False)]


_PATHS = ("source", "schema")
_LEFT_OUT = ("data_dir",)


def settings(run: RunView, key: str, level: int) -> Markup | None:
    """The settings, section by section; paths without the way to them."""
    if not run.settings:
        return None
    rows = [
        (f"{part}.{name}", _shown(name, value))
        for part, values in run.settings.items()
        for name, value in values.items()
        if not _is_unset(value) and name not in _LEFT_OUT
    ]
    return section(
        f"{key}-settings",
        "Settings",
        level,
        element(
            "details",
            element("summary", f"All {len(rows)} settings of this run"),
            table(("Setting", "Value"), rows, f"Settings of {run.name}", kind="settings"),
        ),
    )


def _is_unset(value: Any) -> bool:
    return value is None or (isinstance(value, list) and not value)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(float(value), 6)
    if isinstance(value, list):
        return ", ".join(_shown(name, item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_shown(name, item)}" for key, item in value.items())
    return Path(str(value)).name if name in _PATHS else str(value)
