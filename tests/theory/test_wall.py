from __future__ import annotations

import ast
from pathlib import Path

import tacit.theory


def test_theory_imports_nothing_but_itself_and_the_errors() -> None:
    files = list(Path(tacit.theory.__file__).parent.rglob("*.py"))
    assert len(files) > 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            for name in names:
                inside = name == "tacit" or name.startswith("tacit.")
                assert not inside or name == "tacit.errors" or name.startswith("tacit.theory"), (
                    file.name,
                    name,
                )
