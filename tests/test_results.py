from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.results import FINDINGS, FOLDER, PAGE, page

from tacit.experiments.tables.pages import PAGES

RECORDS = [path for name in PAGES if (path := FOLDER / f"{name.rpartition('/')[2]}.json").exists()]


def test_the_page_is_what_the_numbers_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.results"


def test_the_page_changes_with_the_numbers(tmp_path: Path) -> None:
    if not RECORDS:
        pytest.skip("no results yet")
    for path in RECORDS:
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(
            text.replace('"mean": 0.', '"mean": 0.1', 1).replace("0.4", "0.3", 1)
        )
    assert page(tmp_path) != page()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_result_says_how_it_was_made(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["format"] == "tacit-results-1"
    assert record["name"] in PAGES
    assert record["name"] in FINDINGS
    assert record["command"].startswith(f"tacit reproduce {record['name']}")
    assert record["commit"]
    assert not record["quick"]
    assert record["processor_minutes"] > 0
