"""Test rows of one's own, nothing held out, folders that are splits, and files in other forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.data import infer_schema
from tacit.data.images import read_images
from tacit.data.table_file import INDEX, parse_text, read_columns
from tacit.errors import TacitError
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig


def write(path: Path, rows: range, extra: str = "") -> str:
    lines = "".join(f"{i % 17},{'m' if i % 2 else 'f'},{'yes' if i % 17 > 8 else 'no'}\n" for i in rows)
    path.write_text(f"a,sex,y\n{lines}{extra}")
    return str(path)


def test_rows_of_a_test_file_are_measured_on_and_all_others_trained_on(tmp_path: Path) -> None:
    source = write(tmp_path / "train.csv", range(100))
    test = write(tmp_path / "test.csv", range(40), "999,unknown,yes\nzzz,m,no\n3,m,\n")
    problem = load_problem(DataConfig(source, target="y", test=test))
    assert problem.examples == 100
    assert len(problem.held_out) == 42  # type: ignore[arg-type]
    assert problem.task is not None
    assert any("'sex': 1 of an unknown category" in warning for warning in problem.task.warnings)
    assert any("test.csv" in sentence for sentence in problem.task.public_sources)
    # The schema is that of the training rows: the test rows did not widen it.
    assert problem.schema == load_problem(DataConfig(source, target="y", held_out=0)).schema


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,y\n1,yes\n", "lack the columns 'sex'"),
        ("a,sex,y\n1,m,\n", "missing in every row"),
        ("a,sex,y\n1,m,maybe\n", "none of the classes"),
        ("a,sex\n1,m\n", "no column 'y'"),
    ],
)
def test_test_rows_that_cannot_be_measured_on_are_refused(tmp_path: Path, content: str, words: str) -> None:
    source = write(tmp_path / "train.csv", range(100))
    (tmp_path / "test.csv").write_text(content)
    with pytest.raises(TacitError, match=words):
        load_problem(DataConfig(source, target="y", test=str(tmp_path / "test.csv")))
    with pytest.raises(TacitError, match="names the training rows"):
        load_problem(DataConfig(source, target="y", test=source))


def test_nothing_held_out_means_that_all_rows_are_trained_on(tmp_path: Path) -> None:
    problem = load_problem(DataConfig(write(tmp_path / "t.csv", range(100)), target="y", held_out=0))
    assert problem.examples == 100
    assert problem.held_out is None
    assert not any("held-out" in sentence for sentence in problem.not_covered)


def images(root: Path, *names: str, shade: int = 0) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for place, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.full((4, 4, 3), shade + 20 * place + number, np.uint8)
            image.fromarray(pixels).save(root / name / f"{number}.png")


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Train", "val"), ("training", "validation")])
def test_folders_called_train_and_test_are_splits_and_not_classes(
    tmp_path: Path, train: str, test: str
) -> None:
    images(tmp_path / train, "cat", "dog")
    images(tmp_path / test, "cat", "dog", shade=100)
    task = read_images(tmp_path, size=4)
    assert task.classes == ("cat", "dog")
    assert len(task.train) == len(task.held_out) == 24  # type: ignore[arg-type]
    assert float(task.held_out.tensors[0].mean()) > float(task.train.tensors[0].mean())  # type: ignore[union-attr]


def test_classes_that_happen_to_be_called_test_stay_classes(tmp_path: Path) -> None:
    images(tmp_path, "test", "control")
    assert read_images(tmp_path, size=4).classes == ("control", "test")
    task = read_images(tmp_path, size=4, held_out=0)
    assert task.held_out is None
    assert len(task.train) == 24  # type: ignore[arg-type]


def test_other_encodings_are_read_when_they_are_named(tmp_path: Path) -> None:
    for encoding in ("cp1252", "utf-16-le"):
        (tmp_path / "t.csv").write_text("größe,y\n1,ja\n2,nein\n", encoding=encoding)
        with pytest.raises(TacitError, match="say --encoding"):
            read_columns(tmp_path / "t.csv")
        assert list(read_columns(tmp_path / "t.csv", encoding=encoding).columns) == ["größe", "y"]
    with pytest.raises(TacitError, match="no encoding 'klingon'"):
        read_columns(tmp_path / "t.csv", encoding="klingon")
    with pytest.raises(TacitError, match="is not ascii text"):
        read_columns(tmp_path / "t.csv", encoding="ascii")


def test_excel_sheets_are_read_as_the_csv_would_be(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    from datetime import date, datetime

    book = openpyxl.Workbook()
    book.active.append([None, "n", "day", "time", "flag", "x"])
    book.active.append([0, 1.5, date(2020, 1, 2), datetime(2020, 1, 2, 3, 4), True, "#N/A"])
    book.active.append([1, None, None, None, False, " text "])
    book.active.append([None] * 6)
    book.save(tmp_path / "t.xlsx")
    table = read_columns(tmp_path / "t.xlsx")
    assert table.columns == {
        INDEX: ["0", "1"],
        "n": ["1.5", ""],
        "day": ["2020-01-02", ""],
        "time": ["2020-01-02 03:04:00", ""],
        "flag": ["true", "false"],
        "x": ["", "text"],
    }
    book.create_sheet("other").append([1])
    book.save(tmp_path / "two.xlsx")
    with pytest.raises(TacitError, match="2 sheets with content"):
        read_columns(tmp_path / "two.xlsx")
    (tmp_path / "no.xlsx").write_bytes(b"PK no archive")
    with pytest.raises(TacitError, match="not a readable Excel file"):
        read_columns(tmp_path / "no.xlsx")


def test_the_numbers_of_rows_that_pandas_writes_are_no_column_to_learn_from(tmp_path: Path) -> None:
    text = ",a,y\n" + "".join(f"{i},{i % 5},{'p' if i % 2 else 'q'}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(text)
    schema = infer_schema(tmp_path / "t.csv", "y")
    assert type(schema.columns[INDEX]).__name__ == "Skip"
    assert "a" not in infer_schema(tmp_path / "t.csv", "y", drop=["a"]).columns
    assert parse_text("stdin", "\ufeff,a\n0,1\n").columns == {INDEX: ["0"], "a": ["1"]}
    with pytest.raises(TacitError, match="Column 2"):
        parse_text("stdin", "a,\n0,1\n")
