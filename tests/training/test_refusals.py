"""Bad arguments: one clear sentence, before anything is spent and with nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset, TensorDataset

from tacit import PrivateStep, Support, TacitError, Trainer
from tacit.losses import cross_entropy
from tacit.release.ledger import MemoryLedger
from training.small import EXAMPLES, data, flat, momentum, network, plan, sgd, trainer


def scalar_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def mixing_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses / losses.sum()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(*data().tensors, strict=True)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an iterable data set": ({"dataset": Stream()}, "map-style dataset"),
    "a data set of another size": ({"dataset": data(65)}, r"65 .*64"),
    "a scalar loss": ({"loss": scalar_loss}, r"one value per example.*reduction='none'"),
    "a loss that mixes examples": ({"loss": mixing_loss}, "depends on the other examples"),
    "batchnorm in training mode": (
        {"model": lambda: network(1, nn.BatchNorm2d(4).double())},
        r"4 \(BatchNorm2d\).*without_batch_norm.*\.eval\(\)",
    ),
    "a model without parameters": ({"model": nn.Flatten}, "no trainable parameters"),
    "a frozen model": ({"model": lambda: network().requires_grad_(False)}, "no trainable parameters"),
    "a negative seed": ({"seed": -1}, "seed must be a whole number"),
    "no views": ({"views": 0}, "views must be a whole number of at least 1"),
    "empty chunks": ({"chunk_size": 0}, "chunk_size must be a whole number of at least 1"),
    "negative workers": ({"workers": -1}, "workers must be a whole number"),
    "an optimizer of everything": (
        {"optimizer": lambda named: torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)},
        "must build its optimizer from the parameters it is given",
    ),
    "a pattern that matches nothing": (
        {"plan": plan("tp-topk", always_active=["head.*"])},
        "No trainable parameter matches the pattern",
    ),
    "nothing to choose": ({"plan": plan("tp-rand", always_active=["*"])}, "nothing is left to choose"),
    "too short a warm-up to choose from": (
        {"plan": plan("tp-topk", active_ratio="auto", warmup=(0.05, 0.3))},
        "needs at least 2 scored steps before it to choose its support, but the plan has 1",
    ),
    "a file in place of the directory": ({"run_dir": __file__}, "cannot be made"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_argument_is_one_sentence_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    changed, words = BAD[case]
    settings: dict[str, Any] = {
        "model": network,
        "dataset": data(),
        "loss": cross_entropy,
        "plan": plan("tp-topk", epsilon=3.0),
        "optimizer": sgd,
        "run_dir": tmp_path / "run",
        **changed,
    }
    model = settings.pop("model")()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(TacitError, match=words) as caught:
        Trainer(model, settings.pop("dataset"), settings.pop("loss"), settings.pop("plan"), **settings).fit(
            progress=False
        )
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_refused_run_can_be_started_in_the_same_place(tmp_path: Path) -> None:
    bad = Trainer(network(), data(), scalar_loss, plan("dp-sgd"), optimizer=sgd, run_dir=tmp_path)
    with pytest.raises(TacitError):
        bad.fit(progress=False)
    assert trainer(plan("dp-sgd"), run_dir=tmp_path).fit(progress=False).finished


def test_a_rehearsal_leaves_no_trace_in_the_random_numbers(tmp_path: Path) -> None:
    models = []
    for place in (tmp_path, None):
        torch.manual_seed(0)
        models.append(network(1, nn.Dropout(0.5)))
        trainer(plan("dp-sgd"), models[-1], run_dir=place).fit(progress=False)
    assert torch.equal(flat(models[0]), flat(models[1]))


STEP: dict[str, tuple[dict[str, Any], str]] = {
    "no clip norm": ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0"),
    "negative noise": ({"noise_multiplier": -1.0}, "noise_multiplier must be a finite number of at least 0"),
    "an empty batch size": ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
    "another model's support": ({"support": Support.all(nn.Linear(3, 2))}, "belongs to another model"),
}


@pytest.mark.parametrize("case", STEP)
def test_a_bad_argument_of_a_single_step_is_one_sentence(case: str) -> None:
    changed, words = STEP[case]
    model = network()
    settings: dict[str, Any] = {
        "support": Support.all(model),
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "batch_size": 16,
        "optimizer": momentum,
    }
    with pytest.raises(TacitError, match=words):
        PrivateStep(model, cross_entropy, **{**settings, **changed})


@pytest.mark.parametrize("loss", [scalar_loss, mixing_loss])
def test_a_bad_loss_spends_nothing(loss: Callable[[nn.Module, Any], Tensor]) -> None:
    ledger, model = MemoryLedger(), network()
    step = PrivateStep(
        model,
        loss,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=16,
        optimizer=momentum,
        ledger=ledger,
    )
    before = flat(model)
    with pytest.raises(TacitError):
        step.step(tuple(t[:8] for t in data().tensors))
    assert len(ledger) == 0
    assert torch.equal(flat(model), before)


def test_a_support_without_coordinates_is_refused() -> None:
    with pytest.raises(TacitError, match="k = 0"):
        Support.of_coordinates(network(), {})


def test_any_map_style_data_set_of_the_planned_size_will_do() -> None:
    images, targets = data().tensors
    pairs = [(image, int(target)) for image, target in zip(images, targets, strict=True)]
    one = Trainer(network(), pairs, cross_entropy, plan("dp-sgd"), optimizer=sgd, seed=1)  # type: ignore[arg-type]
    other = Trainer(
        network(), TensorDataset(images, targets), cross_entropy, plan("dp-sgd"), optimizer=sgd, seed=1
    )
    assert len(pairs) == EXAMPLES
    for run in (one, other):
        run.fit(progress=False)
    assert torch.equal(flat(one.model), flat(other.model))
