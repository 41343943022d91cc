"""An accented letter is one character or two, by the system that a file comes from, and means the same."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from tacit.data import read_table
from tacit.data.bags import Bags, words_of
from tacit.data.schema import Category, Schema, Target
from tacit.data.table_file import parse_text
from tacit.data.text import token_ids
from tacit.data.tolerance import tolerate
from tacit.errors import ArgumentError

ONE = "K\u00f6ln gr\u00fc\u00dft"
TWO = unicodedata.normalize("NFD", ONE)


def test_words_are_the_same() -> None:
    assert words_of(TWO) == words_of(ONE) == ["k\u00f6ln", "gr\u00fc\u00dft"]
    assert Bags().ids([TWO]).tolist() == Bags().ids([ONE]).tolist()
    assert token_ids([TWO]).tolist() == token_ids([ONE]).tolist()


def test_so_are_categories_and_classes(tmp_path: Path) -> None:
    path = tmp_path / "towns.csv"
    rows = [f"{(ONE, TWO, 'Bonn', 'Ulm')[row % 4]},{(ONE, TWO, 'x')[row % 3]}" for row in range(120)]
    path.write_text("town,answer\n" + "\n".join(rows), encoding="utf-8")
    task = read_table(path, "answer")
    assert len(task.classes) == 2
    assert task.schema is not None
    town = task.schema.columns["town"]
    assert isinstance(town, Category)
    assert len(town.values) == 3
    with pytest.raises(ArgumentError, match="two different"):
        Category((ONE, TWO))


def test_new_rows_may_spell_a_column_the_other_way() -> None:
    schema = Schema(Target("answer", "binary", ("no", "yes")), {ONE: Category(("a", "b"), missing=False)})
    found = tolerate(parse_text("new", f"{TWO};more\na;1\nc;2\n", None), schema)
    (report,) = found.reports
    assert not report.absent
    assert report.unknown == 1
    assert found.ignored == ("more",)
