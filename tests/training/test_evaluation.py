"""Measuring on held-out data, and predicting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

from tacit import ArgumentError, Trainer
from tacit.losses import cross_entropy
from tacit.runs.metrics import read_metrics
from tacit.training import fitting
from tacit.training.evaluation import accuracy, evaluate, predict
from training.small import data, flat, network, plan, sgd, trainer


def mixed() -> nn.Sequential:
    """In training mode, but for a BatchNorm whose statistics are frozen."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    model.double().train()
    model[2].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_evaluation_measures_in_evaluation_mode_and_restores_every_modules_mode() -> None:
    model, (x, y) = mixed(), data().tensors
    before, state = modes(model), {k: v.clone() for k, v in model.state_dict().items()}
    found = evaluate(model, cross_entropy, TensorDataset(x, y), {"accuracy": accuracy}, chunk_size=10)
    outputs = predict(model, x, chunk_size=7)
    assert modes(model) == before == [True, True, True, False, True, True]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    model.eval()
    expected = model(x).detach()
    assert torch.allclose(outputs, expected)
    assert not outputs.requires_grad
    assert found["loss"] == pytest.approx(float(F.cross_entropy(expected, y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((expected.argmax(1) == y).double().mean()))


def test_measuring_on_the_way_ends_when_it_has_taken_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step is measured whatever it takes; ε is reported all the time."""
    monkeypatch.setattr(fitting, "MEASURING_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "MEASURING_SHARE", 0.0)
    run = trainer(plan("dp-sgd", epsilon=3.0), network(), held_out=data(20), run_dir=tmp_path)
    result = run.fit(progress=False)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows if "held_out_loss" in row] == [1, result.steps]
    assert [row["step"] for row in rows] == list(range(1, result.steps + 1))
    assert all(row["epsilon"] > 0 for row in rows)
    assert result.measured["loss"] == rows[-1]["held_out_loss"]


def test_modes_are_restored_after_a_failure() -> None:
    model = mixed()
    before = modes(model)
    with pytest.raises(RuntimeError):
        predict(model, torch.zeros(3, 5).double())
    assert modes(model) == before


def test_a_frozen_batchnorm_stays_frozen_through_training() -> None:
    model = mixed()
    statistics = model[2].running_mean.clone()
    run = trainer(plan("tp-topk", epsilon=3.0), model, held_out=data(20))
    run.fit(progress=False)
    assert modes(model) == [True, True, True, False, True, True]
    assert torch.equal(model[2].running_mean, statistics)


def test_accuracy_of_classes_and_of_single_outputs() -> None:
    assert accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])) == 0.5
    assert accuracy(torch.tensor([[0.5], [-0.5], [2.0], [1.0]]), torch.tensor([1.0, 0.0, 1.0, 0.0])) == 0.75
    assert accuracy(torch.tensor([0.5, -0.5]), torch.tensor([0, 1])) == 0.0


def test_own_metrics_see_the_whole_data_set() -> None:
    run = trainer(
        plan("dp-sgd"), held_out=data(30), metrics={"rows": lambda outputs, targets: float(len(targets))}
    )
    assert run.evaluate()["rows"] == 30
    assert run.evaluate(data(7)).keys() == {"loss", "rows"}
    assert run.evaluate(data(7))["rows"] == 7


def test_averaged_weights_are_used_for_measuring_and_then_put_back() -> None:
    run = trainer(plan("dp-sgd", epsilon=3.0), network(), average=0.9)
    run.fit(progress=False)
    x, _ = data().tensors
    own = flat(run.model)
    with run.final_weights():
        averaged, expected = flat(run.model), predict(run.model, x)
    assert not torch.equal(own, averaged)
    assert torch.equal(run.predict(x), expected)
    assert torch.equal(flat(run.model), own)


def test_no_rows_give_no_predictions() -> None:
    assert predict(mixed(), torch.zeros(0, 1, 8, 8).double()).shape == (0, 3)


class Rows(Dataset[Any]):
    """Rows that are made one by one."""

    def __init__(self, pairs: TensorDataset) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, place: int) -> Any:
        return self._pairs[place]


TRAIN = data()
SHARED: dict[str, tuple[Dataset[Any], Dataset[Any]]] = {
    "the same object": (TRAIN, TRAIN),
    "a part of it": (TRAIN, Subset(TRAIN, [3, 4])),
    "parts with a row in common": (Subset(TRAIN, range(64)), Subset(Subset(TRAIN, range(10, 30)), [5])),
    "the same tensors": (TRAIN, TensorDataset(*TRAIN.tensors)),
    "a slice": (TRAIN, TensorDataset(*(tensor[60:] for tensor in TRAIN.tensors))),
    "a copy": (TRAIN, data()),
    "a copy in another order": (TRAIN, TensorDataset(*(tensor.flip(0) for tensor in TRAIN.tensors))),
    "a copy made one by one": (Rows(TRAIN), Rows(data())),
}


@pytest.mark.parametrize("case", SHARED)
def test_held_out_data_that_is_trained_on_is_refused(case: str) -> None:
    train, other = SHARED[case]
    with pytest.raises(ArgumentError, match="holds rows that are trained on"):
        Trainer(network(), train, cross_entropy, plan("dp-sgd"), optimizer=sgd, held_out=other)


def test_parts_of_one_data_set_that_share_no_row_are_fine() -> None:
    larger = data(130)
    halves = [TensorDataset(*(tensor[start:128:2] for tensor in larger.tensors)) for start in (0, 1)]
    parts = [Subset(larger, range(start, start + 64)) for start in (0, 64)]
    same_values = [TensorDataset(torch.zeros(64, 1, 8, 8).double(), torch.arange(64) % n) for n in (2, 3)]
    for train, other in (halves, parts, same_values):
        Trainer(network(), train, cross_entropy, plan("dp-sgd"), optimizer=sgd, held_out=other)


def test_empty_or_missing_data_is_refused() -> None:
    empty = TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0))
    with pytest.raises(ArgumentError, match="data set to measure on is empty"):
        evaluate(network(), cross_entropy, empty, {})
    with pytest.raises(ArgumentError, match="held-out data is empty"):
        trainer(plan("dp-sgd"), held_out=empty)
    with pytest.raises(ArgumentError, match="no held-out data"):
        trainer(plan("dp-sgd")).evaluate()


def test_figures_on_the_training_rows_are_refused() -> None:
    rows = data()
    run = Trainer(network(), rows, cross_entropy, plan("dp-sgd"), optimizer=sgd)
    for given in (rows, Subset(rows, [0, 1, 2]), data()):
        with pytest.raises(ArgumentError, match="rows that are trained on"):
            run.evaluate(given)
