from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
