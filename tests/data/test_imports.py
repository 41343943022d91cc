from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tacit.data import resolve, resolve_as
from tacit.errors import ArgumentError

CODE = """
import torch
from torch.utils.data import TensorDataset
model = torch.nn.Linear(2, 1)
class box:
    data = TensorDataset(torch.zeros(3, 2))
def make():
    return torch.nn.Linear(4, 1)
def fails():
    raise RuntimeError("no luck")
def needs(x):
    return x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_things.py").write_text(CODE)
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_things", raising=False)
    return "own_things"


def test_objects_in_the_working_directory(module: str) -> None:
    before = list(sys.path)
    assert isinstance(resolve(f"{module}:model"), nn.Linear)
    assert isinstance(resolve_as(f"{module}:box.data", Dataset), TensorDataset)
    assert resolve_as(f"{module}:make", nn.Module).in_features == 4  # type: ignore[comparison-overlap]
    assert sys.path == before


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("own_things", "written module:object"),
        (":model", "written module:object"),
        ("own_absent:model", "'own_absent' of .* cannot be imported"),
        ("own_broken:model", "ZeroDivisionError"),
        ("own_things:nothing", "has no 'nothing'"),
        ("own_things:fails", "no luck"),
        ("own_things:needs", "Calling 'own_things:needs' failed"),
        ("own_things:box.data", "is a TensorDataset, but a Module is needed"),
    ],
)
def test_paths_that_lead_nowhere(module: str, path: str, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        resolve_as(path, nn.Module)
