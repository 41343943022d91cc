from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task, load
from tacit.data.features import registry
from tacit.errors import ArgumentError
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig

pytest.importorskip("sklearn")


def rows(part: object) -> set[bytes]:
    return {row.numpy().tobytes() for row in part.tensors[0]}  # type: ignore[attr-defined]


def test_the_validation_part_comes_from_the_training_examples_and_leaves_the_test_data_alone() -> None:
    plain = load_problem(DataConfig("digits"))
    split = load_problem(DataConfig("digits", validation=0.25))
    assert rows(split.train) | rows(split.held_out) == rows(plain.train)
    assert not rows(split.train) & rows(split.held_out)
    assert not rows(split.held_out) & rows(plain.held_out)
    assert len(split.held_out) == pytest.approx(0.25 * plain.examples, rel=0.2)  # type: ignore[arg-type]
    again = load_problem(DataConfig("digits", validation=0.25))
    assert torch.equal(split.held_out.tensors[0], again.held_out.tensors[0])  # type: ignore[union-attr]


def test_features_and_labels_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "_SYNTHETIC", 150)
    plain = load_problem(DataConfig("digits", features="scattering"))
    split = load_problem(DataConfig("digits", features="scattering", validation=0.25))
    assert split.task is not None
    assert 100 < split.task.input_shape[0] < 150

    def labelled(*parts: object) -> set[tuple[bytes, int]]:
        return {
            (x.numpy().tobytes(), int(y))
            for part in parts
            for x, y in zip(*part.tensors, strict=True)  # type: ignore[attr-defined]
        }

    assert labelled(split.train, split.held_out) == labelled(plain.train)


def test_tables_have_neither(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,0\n2,1\n")
    with pytest.raises(ArgumentError, match="features and validation are for"):
        load_problem(DataConfig(str(path), target="b", validation=0.1))


def digits() -> Task:
    return load("digits")


def test_a_task_of_ones_own_has_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    source = f"{__name__}:digits"
    whole = load_problem(DataConfig(source))
    split = load_problem(DataConfig(source, validation=0.25, examples=400))
    assert isinstance(split.held_out, TensorDataset)
    assert split.examples + len(split.held_out) == 400 < whole.examples
    assert split.task is not None
    maps = load_problem(DataConfig(source, features="scattering-maps", examples=20))
    assert maps.task is not None
    assert maps.task.input_shape == (81, 2, 2)
    assert maps.task.norm_bound == 1.0


def pairs() -> TensorDataset:
    return TensorDataset(torch.zeros(4, 2), torch.zeros(4, 1))


def test_a_bare_dataset_has_neither() -> None:
    with pytest.raises(
        ArgumentError, match=r"features and validation are for .* a tacit.data.Task of your own"
    ):
        load_problem(DataConfig(f"{__name__}:pairs", kind="binary", validation=0.1))
