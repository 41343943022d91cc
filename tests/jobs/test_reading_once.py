"""A table is read once, however much is made of it, and a wide one is told about in few lines."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tacit.data import table_file as table
from tacit.jobs.problem import load_problem
from tacit.jobs.run import resolve
from tacit.jobs.settings import DataConfig, Experiment
from tacit.name_lists import columns, counted, shortened


@pytest.mark.parametrize("with_schema", [False, True])
def test_a_table_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_schema: bool) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age,ill\n" + "".join(f"{age},{'yes' if age % 3 else 'no'}\n" for age in range(20, 90)))
    (tmp_path / "schema.toml").write_text(
        '[target]\nname = "ill"\nkind = "binary"\nclasses = ["no", "yes"]\n'
    )
    reads: list[Any] = []
    plain = csv.reader

    def counted(*given: Any, **options: Any) -> Any:
        reads.append(given)
        return plain(*given, **options)

    monkeypatch.setattr(table.csv, "reader", counted)
    data = DataConfig(str(path), target="ill", schema=str(tmp_path / "schema.toml") if with_schema else None)
    job = resolve(Experiment(data=data))
    assert job.problem.schema is not None
    assert set(job.problem.schema.columns) == {"age"}
    assert len(reads) == 1


def test_what_is_not_covered_of_a_wide_table_is_one_line_per_reason(tmp_path: Path) -> None:
    names = [f"gene {17 * number % 1009}" for number in range(1000)]
    rows = [[str((number * at) % 97) for at in range(1000)] for number in range(60)]
    path = tmp_path / "wide.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*names, "ill"])
        out.writerows([*row, "yes" if number % 2 else "no"] for number, row in enumerate(rows))
    sentences = load_problem(DataConfig(str(path), target="ill")).not_covered
    assert len(sentences) < 8
    assert all(any(repr(name) in sentence for sentence in sentences) for name in names)
    told = max(sentences, key=len)
    assert told.count("gene ") > 500
    assert len(shortened(told)) < 400
    assert "columns (" in shortened(told)
    assert "..." in shortened(told)


def test_rows_of_numbered_names_are_written_as_a_row() -> None:
    names = [f"px{number}" for number in range(784)]
    assert columns(["age", *names, "income"]) == "786 columns ('age', 'px0' to 'px783', 'income')"
    assert columns([f"x{number:03d}" for number in range(98, 120)]) == "22 columns ('x098' to 'x119')"
    assert columns(["a", "b"]) == "'a', 'b'"
    assert shortened("The type of 'a', 'b': read off.") == "The type of 'a', 'b': read off."


def test_a_terminal_says_how_many_columns_there_are_and_where_they_are_listed() -> None:
    told = f"The range of {columns([f'{name} of a person' for name in range(0, 4000, 2)])}: read off."
    assert counted(told, "runs/a/certificate.json") == (
        "The range of 2,000 columns (listed in runs/a/certificate.json): read off."
    )
    assert counted("The type of 'a', 'b': read off.", "x") == "The type of 'a', 'b': read off."
