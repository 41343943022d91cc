"""The promise of auto and soft: measured fairly, told truthfully."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import ArgumentError
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig
from tacit_papers.promise import measure as measuring
from tacit_papers.promise.measure import Outcome, Question, answer, measure
from tacit_papers.promise.page import broken, differences, filled, summary, tables
from tacit_papers.promise.tables import TABLES, TARGET, TableSpec, chosen

ROOT = Path(__file__).parents[2]
PAGE, RECORD = ROOT / "docs/results/promise.md", ROOT / "docs/results/promise.json"


def small(data_dir: str | None) -> Any:
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(1)
    x = draw.normal(size=(600, 3))
    return pandas.DataFrame(x, columns=list("abc")).assign(**{TARGET: (x[:, 0] > 0).astype(int)})


SMALL = TableSpec("Small", "judging", small, padding=5)


def test_added_columns_have_the_values_of_real_ones_and_say_nothing() -> None:
    plain, padded = replace(SMALL, padding=0).frame(None), SMALL.frame(None)
    assert list(padded.columns) == ["a", "b", "c", TARGET, *(f"extra {place}" for place in range(5))]
    assert sorted(padded["extra 3"]) == sorted(plain["a"])
    assert abs(np.corrcoef(padded["extra 0"], padded[TARGET])[0, 1]) < 0.15


def test_a_run_that_stays_dense_is_not_made_twice_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def fake(question: Question, method: str, seed: int, problem: object, unless_dense: bool = False) -> Any:
        made.append((method, seed))
        sparse = seed == 1 and method != "dense"
        if unless_dense and not sparse:
            return None
        return Outcome(0.9 if sparse else 0.8, 0.1 if sparse else 1.0, 10, not sparse, "because")

    monkeypatch.setattr(measuring, "_run", fake)

    class Few:
        examples = 100
        held_out = range(20)

    found = answer(Question(SMALL, "logistic", 1.0, 2), Few())  # type: ignore[arg-type]
    assert made == [("auto", 0), ("soft", 0), ("auto", 1), ("dense", 1), ("soft", 1)]
    assert {name: one["auc"] for name, one in found["methods"].items()} == {
        "dense": [0.8, 0.8],
        "auto": [0.8, 0.9],
        "soft": [0.8, 0.9],
    }


def test_an_answer_is_reproducible_and_kept(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    SMALL.frame(None).to_csv(source, index=False)
    problem = load_problem(DataConfig(str(source), target=TARGET))
    question = Question(SMALL, "additive", 1.0, 1)
    one, other = answer(question, problem), answer(question, problem)
    one.pop("seconds"), other.pop("seconds")
    assert one == other
    assert one["methods"]["dense"]["auc"][0] > 0.5
    (tmp_path / question.file).write_text(json.dumps({"kept": True}))
    assert measure([question], tmp_path, None, lambda: None) == {"answers": [{"kept": True}]}


def record(auto: list[float], soft: list[float]) -> dict[str, Any]:
    methods = {"dense": [0.8, 0.8], "auto": auto, "soft": soft}
    return {
        "answers": [
            {
                **Question(SMALL, "additive", 1.0, 2).record,
                "rows": 480,
                "held_out": 120,
                "coordinates": 10,
                "methods": {
                    name: {"auc": auc, "active": [1.0, 1.0], "reason": ["", ""]}
                    for name, auc in methods.items()
                },
            }
        ]
    }


def test_a_broken_promise_is_named() -> None:
    kept, lost = record([0.8, 0.8], [0.801, 0.797]), record([0.8, 0.8], [0.799, 0.796])
    assert broken(kept) == []
    assert summary(kept).startswith("No mean is more than 0.2 points below dense.")
    assert broken(lost) == ["Small + 5 columns, additive, ε = 1: soft -0.25"]
    assert summary(lost).startswith("1 means are")
    assert differences(kept["answers"][0])["auto"].mean == 0
    assert "| 0 | 1 | -0.10 ±" in tables(kept)["judging"]


def test_tables_are_chosen_by_name_and_have_different_ones() -> None:
    assert len({table.label for table in TABLES}) == len(TABLES) >= 12
    assert sum(table.part == "judging" for table in TABLES) >= 12
    assert chosen(("Adult",))[0].padding == 0
    with pytest.raises(ArgumentError, match="no table 'Nobody'"):
        chosen(("Nobody",))


def test_the_page_says_what_the_numbers_say() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, found) == page, "run tacit reproduce promise --page docs/results/promise.md"
    assert not broken(found)
    padded = [differences(one) for one in found["answers"] if one["padding"]]
    assert padded
    assert all(one["soft"].low > 0 for one in padded), "above dense on padded tables"
