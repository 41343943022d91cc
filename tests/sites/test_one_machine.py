"""A public data set shared out among sites on one machine."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sites.small import records, site, terms
from tacit.data import Task
from tacit.errors import ArgumentError, FileError
from tacit.sites.one_machine import _check_same, constant_accuracy, shared_out
from tacit.sites.records import load_records


@pytest.fixture
def task(tmp_path: Path) -> Task:
    rows = records(tmp_path).dataset
    return replace(terms().task, train=rows, held_out=rows)


def whole(parts: list[torch.Tensor]) -> list[list[float]]:
    return sorted(row.tolist() for part in parts for row in part)


def test_every_row_goes_to_one_site(task: Task) -> None:
    everything = whole([task.train.tensors[0]])  # type: ignore[attr-defined]
    for column in (None, "age", "ward"):
        parts = shared_out(task, 4, seed=1, column=column)
        assert [len(part.x) for part in parts] == [60] * 4
        assert whole([part.x for part in parts]) == everything


def test_another_seed_is_another_split(task: Task) -> None:
    first, again, other = (shared_out(task, 3, seed=seed)[0].x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_sites_that_are_sorted_by_a_column_differ_in_it(task: Task) -> None:
    age = task.features.index("age")
    ages = [part.x[:, age] for part in shared_out(task, 3, seed=0, column="age")]
    assert all(float(one.max()) <= float(two.min()) for one, two in itertools.pairwise(ages))
    wards = [task.features.index(f"ward = {name}") for name in "ABC"]
    first = shared_out(task, 3, seed=0, column="ward")[0].x[:, wards].mean(0)
    assert float(first[0]) > 0.8


def test_what_cannot_be_shared_out_is_refused(task: Task) -> None:
    with pytest.raises(ArgumentError, match="no column 'weight'"):
        shared_out(task, 3, seed=0, column="weight")
    with pytest.raises(ArgumentError, match="need two each"):
        shared_out(task, 200, seed=0)


def test_a_folder_with_other_records_or_another_budget_is_not_continued(tmp_path: Path, keep: Path) -> None:
    """Rows of another split would be among the rows that the model is measured on."""
    folder = site(tmp_path, keep=keep)
    held = load_records(folder / "records.safetensors")
    _check_same(folder, held, 4.0)
    with pytest.raises(FileError, match="other records"):
        _check_same(folder, held.part(torch.arange(len(held.x)).flip(0)), 4.0)
    with pytest.raises(FileError, match="another ε"):
        _check_same(folder, held, 5.0)


def test_a_constant_names_the_most_frequent_class(task: Task) -> None:
    positive = float(task.train.tensors[1].mean())  # type: ignore[attr-defined]
    assert constant_accuracy(task) == pytest.approx(max(positive, 1 - positive))
