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


def test_texts_are_measured_on_a_file_of_ones_own_on_parts_or_on_nothing(
    bert: Path, reviews: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("review,liked\nvery good,yes\nbad film,no\na film,\n")
    options = {"text": "review", "target": "liked", "length": 5}
    task = text_task(config(bert, reviews, test=str(own), **options))
    assert (len(task.train), len(task.held_out)) == (len(ROWS), 2)  # type: ignore[arg-type]
    assert task.public_sources[-1] == "Held-out rows: those of own.csv."
    parts = [
        text_task(config(bert, reviews, fold=f"{part}/3", split_by="number", **options)) for part in (1, 2, 3)
    ]
    assert sum(len(part.held_out) for part in parts) == len(ROWS)  # type: ignore[arg-type, misc]
    whole = text_task(config(bert, reviews, held_out=0.0, **options))
    assert whole.held_out is None
    assert not any("held-out" in sentence for sentence in whole.not_covered)
    with pytest.raises(ArgumentError, match="names the training rows"):
        text_task(config(bert, reviews, test=str(reviews), **options))
    own.write_text("review,liked\nvery good,perhaps\n")
    with pytest.raises(FileError, match="perhaps"):
        text_task(config(bert, reviews, test=str(own), **options))


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
