"""The wall: the raw side is imported by the release and the training step, and by nobody else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
ALLOWED = ("raw", "release", "training")
NEVER = ("support", "theory", "plan", "certificate", "methods", "report")


def imported(file: Path) -> set[str]:
    """Names of what a file imports when it is loaded or run, but for imports under TYPE_CHECKING."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = ["tacit", *file.relative_to(ROOT).parts[:-1]]
    return set(_names(tree, package))


def _names(node: ast.AST, package: list[str]) -> list[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return [name for part in node.orelse for name in _names(part, package)]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for child in ast.iter_child_nodes(node) for name in _names(child, package)]


def crossing(folder: str) -> list[str]:
    """Files of a folder that import the raw side."""
    return [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / folder).rglob("*.py"))
        if any(name == "tacit.raw" or name.startswith("tacit.raw.") for name in imported(file))
    ]


def test_only_the_release_and_the_training_step_import_the_raw_side() -> None:
    assert {file.split("/")[0] for file in crossing(".")} <= set(ALLOWED)
    assert crossing("release"), "the scan finds what is there"
    assert crossing("training")


@pytest.mark.parametrize("folder", NEVER)
def test_the_public_side_never_does(folder: str) -> None:
    assert list((ROOT / folder).rglob("*.py"))
    assert crossing(folder) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import tacit.raw.clipping", True),
        ("from tacit import raw", True),
        ("from tacit.raw import clipping", True),
        ("from ..raw import clipping", True),
        ("def f():\n    from tacit.raw.probe import probe", True),
        ("if TYPE_CHECKING:\n    from tacit.raw.clipping import Clipper", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from tacit.raw.clipping import Clipper", True),
        ("from tacit.support import Support", False),
    ],
)
def test_the_scan_sees_every_way_to_import(source: str, found: bool) -> None:
    names = _names(ast.parse(source), ["tacit", "theory"])
    assert any(name == "tacit.raw" or name.startswith("tacit.raw.") for name in names) is found
