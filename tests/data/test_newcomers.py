"""Tables as people bring them: what looked odd to somebody who tried."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tacit.data import Schema, read_table
from tacit.data.infer import guess_target
from tacit.data.schema import Number, Skip
from tacit.data.table_file import read_columns
from tacit.data.task import without_rows
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


def test_an_answer_of_one_row_is_told_for_two_classes_too(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("n,y\n" + "".join(f"{row},{'b' if row else 'a'}\n" for row in range(200)))
    (warning,) = read_table(path, "y", held_out=0).warnings
    assert warning.startswith("Fewer than 10 rows have the answer 'a' in the target 'y': too few to learn")


def test_equal_rows_that_leave_one_class_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "same.csv"
    path.write_text("a,y\n" + "3,1\n4,0\n" * 100)
    with pytest.raises(FileError, match=r"Rows that are equal.*held out together"):
        read_table(path, "y")
    assert len(read_table(path, "y", held_out=0.0).train) == 200  # type: ignore[arg-type]


def test_what_looks_odd_in_rows_is_said(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    lines = ["Patient,code,x,outcome"]
    for row in range(400):
        answer = "" if row % 50 == 0 else "unsure" if row == 7 else ("yes", "no", "later")[row % 3]
        lines.append(f"{row % 150},A-{row:03d},{row * 7 % 91},{answer}")
    path.write_text("\n".join(lines))
    task = read_table(path, "outcome")
    missing, rare, owner = task.warnings
    assert missing == "8 of 400 rows have no answer in the target 'outcome' and are left out."
    assert "with fewer than 10 rows cannot be learnt: 'unsure'" in rare
    assert "say --unit 'Patient'" in owner
    assert without_rows(task.warnings) == ()
    assert isinstance(task.schema, Schema)
    assert isinstance(task.schema.columns["code"], Skip)  # one word each, all different: ids
    by_patient = read_table(path, "outcome", unit="Patient")
    assert not any("--unit" in sentence for sentence in by_patient.warnings)


def test_text_that_a_spreadsheet_calls_unicode_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sheet.txt"
    text = "größe\tkrank\n" + "".join(f"{row}\t{('ja', 'nein')[row % 2]}\n" for row in range(5))
    for encoding in ("utf-16", "utf-8-sig"):
        path.write_text(text, encoding=encoding)
        assert list(read_columns(path).columns) == ["größe", "krank"]
    with gzip.open(tmp_path / "sheet.csv.gz", "wt", encoding="utf-16") as file:
        file.write(text)
    assert list(read_columns(tmp_path / "sheet.csv.gz").column("krank"))[:2] == ["ja", "nein"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([str(row % 5) for row in range(60)], "multiclass"),
        ([str(row % 5 / 2) for row in range(60)], "regression"),  # fractions are no names
        ([f"{150 + row}.0" for row in range(16)], "regression"),  # a number that hardly repeats
        ([f"type {row % 9}" for row in range(20)], "multiclass"),
    ],
)
def test_numbers_that_are_amounts_are_no_classes(tmp_path: Path, values: list[str], kind: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{row},{value}\n" for row, value in enumerate(values)))
    assert guess_target(read_columns(path), "y", None, None).kind == kind


def test_codes_among_numbers_do_not_stretch_a_range_that_is_read_off_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "ages.csv"
    rows = [f"{999 if row % 90 == 0 else 20 + row % 60},{row % 7},{row % 3 % 2}" for row in range(900)]
    path.write_text("age,x,y\n" + "\n".join(rows) + "\n")
    schema = read_table(path, "y").schema
    assert schema is not None
    age = schema.columns["age"]
    assert isinstance(age, Number)
    assert (age.low, age.high) == (20, 80)


def test_held_out_targets_outside_the_range_are_named(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    rows = [f"{row},{row % 50},{row % 50 * (1000 if row % 100 == 7 else 1)}" for row in range(4000)]
    path.write_text("day,x,cost\n" + "\n".join(rows) + "\n")
    task = read_table(path, "cost", kind="regression")
    said = [sentence for sentence in task.warnings if "outside the range that is trained on" in sentence]
    assert len(said) == 1
    assert "% of the held-out targets" in said[0]
    assert not without_rows(said)
    path.write_text("day,x,cost\n" + "\n".join(f"{row},{row % 50},{row % 50}" for row in range(4000)) + "\n")
    assert not any("outside" in sentence for sentence in read_table(path, "cost", kind="regression").warnings)
