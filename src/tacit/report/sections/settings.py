"""Every setting of a run that was started from a description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.report.markup import Markup, element
from tacit.report.reading import RunView
from tacit.report.scale import number
from tacit.report.sections.layout import section
from tacit.report.tables import table

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
