"""The paper's own setting: networks of the published sizes, all methods tuned alike, verdicts from the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.data.features.scattering import normalised_maps
from tacit_papers.engine.setting import Setting
from tacit_papers.sparta.tasks import _pair
from tacit_papers.tp_topk import network_models
from tacit_papers.tp_topk.networks import CNN, METHODS, RATES, SCATTERNET_CNN, TABLES
from tacit_papers.tp_topk.results_page import networks_findings


def setting(**changed: Any) -> Setting:
    given: dict[str, Any] = {"datasets": ("fmnist",), "epsilons": (1.0, 8.0), "seeds": 3, "out": Path("x")}
    return Setting(**{**given, "workers": 1, **changed})


@pytest.mark.parametrize(
    ("name", "coordinates", "shape"),
    [
        ("fmnist_scatternet_cnn", 33_066, (81, 7, 7)),
        ("cifar10_scatternet_cnn", 56_394, (243, 8, 8)),
        ("fmnist_cnn", 26_010, (1, 28, 28)),
        ("cifar10_cnn", None, (3, 32, 32)),
    ],
)
def test_networks_have_the_sizes_that_are_said(
    name: str, coordinates: int | None, shape: tuple[int, ...]
) -> None:
    network = getattr(network_models, name)()
    count = sum(parameter.numel() for parameter in network.parameters())
    assert coordinates is None or count == coordinates
    assert network(torch.randn(2, *shape)).shape == (2, 10)


def test_numbers_of_scattering_maps_have_mean_square_one_in_the_network() -> None:
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    maps = torch.cat(list(normalised_maps(images)))
    assert maps.shape == (4, 81, 7, 7)
    scaled = network_models.fmnist_scatternet_cnn()[0](maps)
    torch.testing.assert_close(scaled.square().mean((1, 2, 3)), torch.ones(4))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.NAME)
def test_every_method_has_the_same_task_the_same_training_and_the_same_rates(table: Any) -> None:
    found = table.contestants(setting())
    assert [c.experiment.method.name for c in found] == [*METHODS, *METHODS]
    assert {c.rates for c in found} == {RATES}
    assert len({(c.experiment.data, c.experiment.model, c.experiment.training) for c in found}) == 1
    assert {c.experiment.privacy.epsilon for c in found} == {1.0, 8.0}


def test_only_one_network_looks_at_scattering_maps() -> None:
    assert SCATTERNET_CNN.contestants(setting())[0].experiment.data.features == "scattering-maps"
    assert CNN.contestants(setting())[0].experiment.data.features is None


def _record(topk: list[float], rand: list[float], dense: list[float], rate: float = 4.0) -> dict[str, Any]:
    methods = {
        method: {"accuracy": {"values": values}, "learning_rate": rate, "published": None}
        for method, values in (("dp-sgd", dense), ("tp-rand", rand), ("tp-topk", topk))
    }
    return {"rates": list(RATES), "rows": [{"dataset": "fmnist", "epsilon": 1.0, "methods": methods}]}


def test_a_claim_holds_only_if_its_interval_lies_above_zero() -> None:
    against_rand, against_dense = networks_findings(
        _record([0.85, 0.86, 0.87], [0.80, 0.81, 0.82], [0.90, 0.91, 0.92])
    )
    assert against_rand.startswith("**Holds**")
    assert against_dense.startswith("**The opposite holds**")
    against_rand, _, edge = networks_findings(
        _record([0.85, 0.86, 0.87], [0.83, 0.87, 0.86], [0.85, 0.86, 0.87], max(RATES))
    )
    assert against_rand.startswith("**Not shown**")
    assert edge.endswith("for DP-SGD, TP-Rand, TP-TopK.")


def test_two_classes_of_a_task_are_a_binary_task() -> None:
    images = torch.arange(12.0).view(12, 1, 1, 1)
    labels = torch.arange(12) % 4
    task = Task(
        "letters",
        TensorDataset(images, labels),
        TensorDataset(images[:4], labels[:4]),
        "multiclass",
        (1, 1, 1),
        classes=("a", "b", "c", "d"),
    )
    found = _pair(task, "pair", (3, 1))
    assert (found.kind, found.classes, found.outputs) == ("binary", ("d", "b"), 1)
    assert isinstance(found.train, TensorDataset)
    x, y = found.train.tensors
    assert x.flatten().tolist() == [1, 3, 5, 7, 9, 11]
    assert y.tolist() == [[1.0], [0.0], [1.0], [0.0], [1.0], [0.0]]
