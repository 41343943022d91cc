"""The floor plan: which folder may import which. An import that is not in this table fails.

Ring 1, the kernel, knows nothing of ring 2, the tools and the application. Nobody imports the command line. The raw
side is imported by the release and the training step, and by nobody else: that is the wall.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
PAPERS = ROOT.parents[1] / "papers" / "tacit_papers"

# Leaves that every folder may use: errors, files, and what has no state.
EVERYWHERE = {
    "batches",
    "errors",
    "files",
    "losses",
    "name_lists",
    "option_fields",
    "units",
    "plotting",
    "processor",
    "randomness",
    "rounding",
    "tensors",
    "version",
    "waiting",
    "warning",
}

KERNEL: dict[str, set[str]] = {
    "theory": set(),
    "plan": set(),
    "distributed": set(),
    "support": {"plan", "theory"},
    "raw": {"plan", "support"},
    "release": {"plan", "support", "raw", "distributed"},
    "runs": {"plan", "support", "release"},
    "training": {"plan", "support", "raw", "release", "runs", "distributed"},
}
RELEASED = {"plan", "support", "theory", "release", "runs", "training", "distributed"}
APPLICATION: dict[str, set[str]] = {
    "data": set(),
    "models": {"data", "support"},
    "federated": {"plan", "release", "data"},
    "integrations": {"plan", "training", "runs", "data", "jobs"},
    "audit": RELEASED | {"federated"},
    "jobs": RELEASED | {"data", "models", "audit"},
    "report": {"plan", "release", "runs", "jobs"},
    "sites": {"plan", "support", "release", "runs", "training", "data", "models", "jobs", "federated"},
    "cli": RELEASED | {"data", "jobs", "audit", "report", "federated", "sites"},
}
MAY_IMPORT = KERNEL | APPLICATION


def names_in(node: ast.AST, package: list[str]) -> Iterator[str]:
    """What a file imports when it is loaded or run, except under TYPE_CHECKING."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for part in node.orelse:
            yield from names_in(part, package)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    else:
        for child in ast.iter_child_nodes(node):
            yield from names_in(child, package)


def imports() -> dict[str, set[str]]:
    """The modules of Tacit that each module of Tacit imports."""
    files = {module_name(file): file for file in sorted(ROOT.rglob("*.py"))}
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        package = ["tacit", *file.relative_to(ROOT).parts[:-1]]
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found[name] = {other for other in names_in(tree, package) if other in files and other != name}
    return found


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(["tacit", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def folder(module: str) -> str:
    """The folder below ``tacit``, or the name of a top-level module; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


IMPORTS = imports()
EDGES = {(folder(one), folder(other)) for one, others in IMPORTS.items() for other in others}


def test_every_folder_stands_in_the_table() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert folders == set(MAY_IMPORT)
    assert {folder(one) for one in IMPORTS} - folders - EVERYWHERE == {"", "__main__"}


@pytest.mark.parametrize("name", sorted(MAY_IMPORT))
def test_a_folder_imports_what_the_table_allows(name: str) -> None:
    used = {other for one, other in EDGES if one == name} - EVERYWHERE - {name, ""}
    assert used <= MAY_IMPORT[name], f"{name} may not import {used - MAY_IMPORT[name]}"


@pytest.mark.parametrize("name", sorted(MAY_IMPORT))
def test_the_table_allows_nothing_that_nobody_uses(name: str) -> None:
    used = {other for one, other in EDGES if one == name}
    allowed = MAY_IMPORT[name] - (RELEASED if MAY_IMPORT[name] >= RELEASED else set())
    assert allowed <= used, f"{name} does not import {allowed - used}"


def test_leaves_import_leaves_only() -> None:
    for one, other in EDGES:
        if one in EVERYWHERE:
            assert other in EVERYWHERE | {""}


def test_the_kernel_does_not_know_the_application() -> None:
    for name in KERNEL:
        assert not MAY_IMPORT[name] & set(APPLICATION)


def test_folders_form_no_cycle() -> None:
    assert not cycle({name: {b for a, b in EDGES if a == name and b in MAY_IMPORT} for name in MAY_IMPORT})


def test_modules_form_no_cycle() -> None:
    # A package's __init__ gathers what its modules offer; they may import one another without it.
    gathered = {name for name, others in IMPORTS.items() if (ROOT / "/".join(name.split(".")[1:])).is_dir()}
    plain = {one: others - gathered for one, others in IMPORTS.items() if one not in gathered}
    assert not cycle(plain)


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of the graph, or nothing."""
    finished: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in finished:
            return []
        for other in graph.get(node, ()):
            if other != node and (found := visit(other, [*path, node])):
                return found
        finished.add(node)
        return []

    for start in graph:
        if found := visit(start, []):
            return found
    return []


def test_only_the_release_and_the_training_step_cross_the_wall() -> None:
    assert {one for one, other in EDGES if other == "raw"} == {"raw", "release", "training"}


def test_tacit_does_not_import_the_papers() -> None:
    for file in ROOT.rglob("*.py"):
        names = set(names_in(ast.parse(file.read_text(encoding="utf-8")), ["tacit"]))
        assert not any(name.split(".")[0] == "tacit_papers" for name in names), file


def test_papers_do_not_cross_the_wall() -> None:
    files = list(PAPERS.rglob("*.py"))
    assert files
    for file in files:
        names = set(names_in(ast.parse(file.read_text(encoding="utf-8")), ["tacit_papers"]))
        assert not any(f"{name}.".startswith("tacit.raw.") for name in names), file


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
    names = list(names_in(ast.parse(source), ["tacit", "theory"]))
    assert any(name == "tacit.raw" or name.startswith("tacit.raw.") for name in names) is found


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
