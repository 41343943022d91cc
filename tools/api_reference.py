"""Write docs/reference/api.md from the docstrings: python -m tools.api_reference. A test keeps the page true."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
MODULES = (
    "tacit",
    "tacit.losses",
    "tacit.training.schedules",
    "tacit.plan",
    "tacit.plan.methods",
    "tacit.support",
    "tacit.distributed",
    "tacit.runs",
    "tacit.audit",
    "tacit.release.ledger",
    "tacit.raw.rules.registry",
    "tacit.theory",
    "tacit.data",
    "tacit.data.features",
    "tacit.jobs.recipes",
    "tacit.models",
    "tacit.errors",
)
INTRODUCTION = """# Python API

Generated from the docstrings by `python -m tools.api_reference`; a test keeps it up to date.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name in MODULES:
        module = importlib.import_module(name)
        entries = [_entry(public, member) for public, member in _members(module)]
        if entries:
            parts += [f"\n## `{name}`\n\n{_text(module)}\n", *entries]
    return "".join(parts)


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [n for n, m in vars(module).items() if getattr(m, "__module__", None) == module.__name__]
    for name in sorted(names):
        member = getattr(module, name)
        if not name.startswith("_") and (inspect.isclass(member) or inspect.isfunction(member)):
            yield name, member


def _entry(name: str, member: Any) -> str:
    lines = [f"\n### `{name}{_signature(member)}`\n\n{_text(member)}\n"]
    if inspect.isclass(member):
        for method, function in vars(member).items():
            plain = function.__func__ if isinstance(function, classmethod | staticmethod) else function
            if method.startswith("_"):
                continue
            if inspect.isfunction(plain):
                lines.append(f"\n- `{method}{_signature(plain)}`: {_first(plain)}")
            elif isinstance(function, property) and function.fget is not None:
                lines.append(f"\n- `{method}`: {_first(function.fget)}")
        lines.append("\n")
    return "".join(lines)


class _Plain:
    """An annotation that prints as it is written, without quotes; the defaults keep theirs."""

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def _signature(member: Any) -> str:
    try:
        found = inspect.signature(member)
    except (TypeError, ValueError):
        return ""
    plain = [
        one if one.annotation is one.empty else one.replace(annotation=_Plain(one.annotation))
        for one in found.parameters.values()
    ]
    found = found.replace(parameters=plain)
    if found.return_annotation is not found.empty:
        found = found.replace(return_annotation=_Plain(found.return_annotation))
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", str(found))


def _text(member: Any) -> str:
    return inspect.cleandoc(member.__doc__ or "")


def _first(member: Any) -> str:
    return " ".join(_text(member).split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(reference())
