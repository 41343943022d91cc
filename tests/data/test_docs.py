from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit.data import read_schema

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{20 + i % 60},{'yes' if i % 3 else 'no'}" for i in range(100)]
    Path("customers.csv").write_text("\n".join(["customer_id,age,churn", *rows]) + "\n")
    for kind in ("cat", "dog"):
        for i in range(20):
            Path("pets", kind).mkdir(parents=True, exist_ok=True)
            image.new("RGB", (9, 9), (i, 0, len(kind))).save(Path("pets", kind, f"{i}{kind}.png"))
    snippets = blocks("python")
    assert len(snippets) == 4
    for snippet in snippets:
        exec(compile(snippet, "docs/guide/data.md", "exec"), {})


def test_schema_in_the_page_is_valid(tmp_path: Path) -> None:
    (schema,) = blocks("toml")
    path = tmp_path / "schema.toml"
    path.write_text(schema, encoding="utf-8")
    assert len(read_schema(path).columns) == 6
