"""Tables as people bring them: what looked odd to somebody who tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.data import read_table
from tacit.data.table_file import read_columns
from tacit.errors import FileError


def test_lines_that_end_with_a_separator_have_no_column_more(tmp_path: Path) -> None:
    path = tmp_path / "tabs.tsv"
    path.write_text('a\tb\t\n1\t"x"\t\n2\t"y"\t\n')
    assert list(read_columns(path).columns) == ["a", "b"]
    path.write_text("a\tb\t\n1\tx\n2\ty\t\n")  # the data may end without one
    assert list(read_columns(path).column("b")) == ["x", "y"]
    path.write_text("a\tb\t\n1\tx\t\n2\ty\t3\n")
    with pytest.raises(FileError, match=r"Column 3 of .* has no name"):
        read_columns(path)


@pytest.mark.parametrize(("yes", "no"), [("Ja", "Nein"), ("oui", "non"), ("sim", "Não"), ("Yes", "NO")])
def test_the_answer_that_is_not_no_is_the_positive_class(tmp_path: Path, yes: str, no: str) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(
        "n;answer\n" + "".join(f"{row};{yes if row % 3 else no}\n" for row in range(60)), encoding="utf-8"
    )
    assert read_table(path, "answer").classes == (no, yes)


def test_equal_rows_that_leave_one_class_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "same.csv"
    path.write_text("a,y\n" + "3,1\n4,0\n" * 100)
    with pytest.raises(FileError, match=r"Rows that are equal.*held out together"):
        read_table(path, "y")
    assert len(read_table(path, "y", held_out=0.0).train) == 200  # type: ignore[arg-type]
