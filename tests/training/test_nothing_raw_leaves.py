"""A value that a forward pass keeps is in no file of a run and in no model that leaves a step."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit import ModelError, PrivateStep, Trainer
from tacit.losses import cross_entropy
from tacit.support import Support
from tacit.tensors import read_tensors
from training.small import data, network, plan, sgd

RAW = 1234.5


class Maximum(nn.Module):
    """Remembers the largest value it has seen above a limit, in a buffer and in attributes."""

    def __init__(self, above: float) -> None:
        super().__init__()
        self._above = above
        self.register_buffer("largest", torch.zeros((), dtype=torch.float64))
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > self._above:
            self.largest = torch.maximum(self.largest, x.detach().max())
            self.history.append(x)
            self.last = x
        return x


def odd_data() -> TensorDataset:
    """One row, not among the first ones, holds a value that is easy to recognise."""
    x, y = data().tensors
    x = x.clone()
    x[40, 0, 0, 0] = RAW
    return TensorDataset(x, y)


def network_with(maximum: Maximum) -> nn.Sequential:
    return nn.Sequential(maximum, *network())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def holds(tensors: dict[str, Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if bool((tensor.double() - RAW).abs().lt(1).any())]


def test_a_running_maximum_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = network_with(Maximum(above=-1e9))
    run = Trainer(model, odd_data(), cross_entropy, plan("dp-sgd"), optimizer=sgd, run_dir=tmp_path / "run")
    with pytest.raises(ModelError, match=r"buffer '0\.largest' changes in a forward pass"):
        run.fit(progress=False)
    assert list(tmp_path.iterdir()) == []
    assert holds(model.state_dict()) == []


@pytest.mark.parametrize("options", [{}, {"chunk_size": 5}, {"views": 2}, {"average": 0.9}])
def test_a_maximum_that_only_an_odd_row_moves_is_in_no_file(tmp_path: Path, options: dict[str, Any]) -> None:
    model = network_with(Maximum(above=1000))
    chosen = plan("dp-sgd", epsilon=3.0, batch_size=60, epochs=4)
    run = Trainer(
        model,
        odd_data(),
        cross_entropy,
        chosen,
        optimizer=sgd,
        run_dir=tmp_path,
        checkpoint_seconds=0.0,
        **options,
    )
    with suppress(ModelError):  # a look that meets the odd row refuses the model
        run.fit(progress=False)
    written = list(tmp_path.glob("*.safetensors"))
    for path in written:
        assert holds(read_tensors(path)[0]) == []
    assert holds(model.state_dict()) == []
    assert torch.tensor(RAW, dtype=torch.float64).numpy().tobytes() not in pickle.dumps(model)
    assert not hasattr(model[0], "last")


def test_nor_is_it_in_the_model_after_a_single_step() -> None:
    model = network_with(Maximum(above=1000))
    step = PrivateStep(
        model,
        cross_entropy,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=64,
        optimizer=sgd,
    )
    x, y = odd_data().tensors
    step.step_over([(x[:32], y[:32]), (x[32:], y[32:])])
    assert holds(model.state_dict()) == []
    assert model[0].history == []
    assert torch.tensor(RAW, dtype=torch.float64).numpy().tobytes() not in pickle.dumps(model)
