"""The page of embedding tables says what its figures say, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.embeddings import FIGURES, PAGE, Figure, added, page
from benchmarks.machine import Machine
from benchmarks.output import caption


def test_the_page_is_made_of_the_figures() -> None:
    record = json.loads(FIGURES.read_text(encoding="utf-8"))
    figures = [Figure(**figure) for figure in record["figures"]]
    assert PAGE.read_text(encoding="utf-8") == page(figures, caption(Machine(**record["machine"])))


def test_of_every_size_and_kind_of_words_the_first_run_counts(tmp_path: Path) -> None:
    paths = []
    for commit, kinds in (("first", ["text"]), ("second", ["text", "uniform"])):
        figures = [
            {
                "contender": "plain",
                "rows": 10,
                "words": words,
                "seconds": 1.0,
                "drawn": 0,
                "peak_bytes": 1,
                "failure": None,
                "commit": "",
            }
            for words in kinds
        ]
        paths.append(tmp_path / f"{commit}.json")
        paths[-1].write_text(json.dumps({"machine": {"commit": commit}, "figures": figures}))
    found = added(paths, set())
    assert [(figure.words, figure.commit) for figure in found] == [("text", "first"), ("uniform", "second")]
    assert added(paths, {(10, "text"), (10, "uniform")}) == []
