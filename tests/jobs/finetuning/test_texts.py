from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import ArgumentError, FileError
from tacit.jobs.settings import DataConfig
from tacit.jobs.texts import by_length, text_task

ROWS = [
    ("a very good film", "yes"),
    ("bad", "no"),
    ("a film", "yes"),
    ("a bad film", "no"),
    ("very bad", "no"),
] * 8


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "review", "liked"])
        writer.writerows([number, *row] for number, row in enumerate(ROWS))
    return path


def config(bert: Path, source: Path | str, **options: object) -> DataConfig:
    return DataConfig(str(source), tokenizer=str(bert), **options)  # type: ignore[arg-type]


def test_texts_of_a_table_become_ids_of_the_tokenizer(bert: Path, reviews: Path) -> None:
    task = text_task(config(bert, reviews, text="review", target="liked", length=5))
    assert task.kind == "binary"
    assert task.classes == ("no", "yes")
    ids, y = task.train.tensors  # type: ignore[attr-defined]
    assert len(ids) + len(task.held_out) == len(ROWS)  # type: ignore[arg-type]
    known = {
        (2, 5, 9, 6, 3): 1.0,  # cut off after five tokens, the last of them the end of the text
        (2, 7, 3, 0, 0): 0.0,
        (2, 5, 8, 3, 0): 1.0,
        (2, 5, 7, 8, 3): 0.0,
        (2, 9, 7, 3, 0): 0.0,
    }
    for row, label in zip(ids.tolist(), y.flatten().tolist(), strict=True):
        assert known[tuple(row)] == label
    lengths = (ids != 0).sum(1)
    assert (lengths.diff() >= 0).all()
    assert any("classes of the target 'liked'" in sentence for sentence in task.not_covered)


def test_rows_keep_their_labels_when_put_in_order() -> None:
    ids = np.array([[1, 2, 3], [1, 0, 0], [4, 5, 0]])
    order = by_length(ids, padding=0)
    assert np.array([3, 1, 2])[order].tolist() == [1, 2, 3]
    assert ids[order].tolist() == [[1, 0, 0], [4, 5, 0], [1, 2, 3]]


def test_first_examples_only(bert: Path, reviews: Path) -> None:
    task = text_task(config(bert, reviews, text="review", target="liked", examples=7))
    assert len(task.train) == 7  # type: ignore[arg-type]


def test_texts_that_cannot_be_read(bert: Path, reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Say --text and --target"):
        text_task(config(bert, reviews, target="liked"))
    with pytest.raises(ArgumentError, match="no column 'words'"):
        text_task(config(bert, reviews, text="words", target="liked"))
    with pytest.raises(ArgumentError, match="is a number"):
        text_task(config(bert, reviews, text="review", target="number", kind="regression"))
    with pytest.raises(FileError, match="'mnist' is neither"):
        text_task(config(bert, "mnist"))
    (bert / "vocab.txt").rename(bert / "words")
    with pytest.raises(FileError, match="holds no tokenizer"):
        text_task(config(bert, reviews, text="review", target="liked"))
