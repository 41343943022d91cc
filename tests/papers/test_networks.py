"""The paper's own setting: networks of the published sizes, all methods tuned alike, verdicts from the numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data import Task
from tacit.data.features.scattering import normalised_maps
from tacit.errors import ArgumentError
from tacit.files import write_json
from tacit.jobs.comparison import CellResult
from tacit_papers.engine.contest import Contestant, Outcome
from tacit_papers.engine.setting import Setting
from tacit_papers.pages import networks_page, table3_page
from tacit_papers.sparta.tasks import _pair
from tacit_papers.tp_topk import network_models
from tacit_papers.tp_topk.network_sweeps import RATIO_SWEEPS, SPLIT_SWEEPS
from tacit_papers.tp_topk.networks import CNN, CONDITIONS, METHODS, RATES, SCATTERNET_CNN, TABLES
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
    for dataset in table.DATASETS:
        found = [c for epsilon in (1.0, 8.0) for c in table.contestants(setting(), dataset, epsilon)]
        given = table.conditions(dataset)
        assert [c.experiment.method.name for c in found] == [*given.methods, *given.methods]
        assert given.methods[:3] == METHODS[:3]
        assert {c.rates for c in found} == {given.rates}
        assert len({(c.experiment.data, c.experiment.model, c.experiment.training) for c in found}) == 1
        assert {c.experiment.privacy.epsilon for c in found} == {1.0, 8.0}


def _outcomes(
    asked: list[tuple[float, tuple[float, ...]]],
) -> Callable[[Setting, str, Sequence[Contestant], str], list[Outcome]]:
    """In place of runs: the rate 16 is best, and accuracy is a tenth of ε."""

    def outcomes(_: Setting, name: str, group: Sequence[Contestant], measure: str) -> list[Outcome]:
        asked.extend((contestant.epsilon, contestant.rates) for contestant in group)
        return [
            Outcome(
                contestant,
                16.0 if 16.0 in contestant.rates else contestant.rates[0],
                tuple((rate, 0.5) for rate in contestant.rates if len(contestant.rates) > 1),
                tuple(
                    CellResult(
                        "m", contestant.epsilon, seed, {measure: contestant.epsilon / 10}, 4, 10, 1.0, 60.0
                    )
                    for seed in range(3)
                ),
                180.0,
            )
            for contestant in group
        ]

    return outcomes


def test_rows_of_other_data_and_other_epsilon_stay_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, tuple[float, ...]]] = []
    monkeypatch.setattr(Setting, "outcomes", _outcomes(asked))
    first = SCATTERNET_CNN.run(setting(out=tmp_path, epsilons=(8.0,)))
    assert asked == [(8.0, RATES)] * 4
    write_json(tmp_path / "scatternet-cnn.json", first)
    second = SCATTERNET_CNN.run(setting(out=tmp_path, epsilons=(1.0,)))
    assert [(row["dataset"], row["epsilon"]) for row in second["rows"]] == [("fmnist", 1.0), ("fmnist", 8.0)]
    assert second["rows"][1] == json.loads(json.dumps(first["rows"][0]))
    assert second["processor_minutes"] == 24.0
    assert "--epsilon 1 --epsilon 8" in second["command"]
    other = SCATTERNET_CNN.run(setting(out=tmp_path, epsilons=(1.0,), seeds=2))
    assert len(other["rows"]) == 1


def test_where_one_epsilon_is_tuned_the_others_use_its_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, tuple[float, ...]]] = []
    monkeypatch.setattr(Setting, "outcomes", _outcomes(asked))
    assert CONDITIONS["scatternet_cnn", "cifar10"].tuned_at == 3.0
    found = SCATTERNET_CNN.run(setting(out=tmp_path, datasets=("cifar10",)))
    rates = CONDITIONS["scatternet_cnn", "cifar10"].rates
    assert asked == [(3.0, rates)] * 3 + [(1.0, (16.0,))] * 3 + [(8.0, (16.0,))] * 3
    row = found["rows"][0]
    assert (row["epsilon"], row["tuned_at"]) == (1.0, 3.0)
    assert row["methods"]["dp-sgd"]["accuracy"]["values"] == [0.1, 0.1, 0.1]
    assert [rate for rate, _ in row["methods"]["dp-sgd"]["validation"]] == list(rates)
    assert "| – | 3 | 4, 8, 16 at ε = 3 | 16, 16, 16 |" in networks_page(found)


def test_only_one_network_looks_at_scattering_maps() -> None:
    assert (
        SCATTERNET_CNN.contestants(setting(), "fmnist", 1.0)[0].experiment.data.features == "scattering-maps"
    )
    assert CNN.contestants(setting(), "fmnist", 1.0)[0].experiment.data.features is None


def _record(topk: list[float], rand: list[float], dense: list[float], rate: float = 4.0) -> dict[str, Any]:
    methods = {
        method: {"accuracy": {"values": values}, "learning_rate": rate, "published": None}
        for method, values in (("dp-sgd", dense), ("tp-rand", rand), ("tp-topk", topk))
    }
    return {
        "name": CNN.NAME,
        "rows": [{"dataset": "fmnist", "epsilon": 1.0, "rates": list(RATES), "methods": methods}],
    }


def test_a_claim_holds_only_if_its_interval_lies_above_zero() -> None:
    rand, dense, against_rand, against_dense, missing = networks_findings(
        _record([0.85, 0.86, 0.87], [0.80, 0.81, 0.82], [0.90, 0.91, 0.92])
    )
    assert "beats a random one holds in 1 of 1 cells, the opposite in 0" in rand
    assert "beats dense holds in 0 of 1 cells, the opposite in 1" in dense
    assert against_rand.startswith("**Holds**")
    assert against_dense.startswith("**The opposite holds**")
    assert missing == "Not measured: FMNIST at ε = 3, 8; CIFAR-10 at ε = 1, 3, 8."
    _, _, against_rand, _, edge, _ = networks_findings(
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


def test_sweeps_take_the_rates_of_table_2_and_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, tuple[float, ...]]] = []
    monkeypatch.setattr(Setting, "outcomes", _outcomes(asked))
    given = setting(out=tmp_path, epsilons=(8.0,))
    write_json(tmp_path / "scatternet-cnn.json", SCATTERNET_CNN.run(given))
    ratios, _ = RATIO_SWEEPS
    found = ratios.contestants(given)
    assert [(c.experiment.method.name, c.experiment.method.active_ratio) for c in found] == [
        (name, ratio) for ratio in (0.2, 0.4, 0.6, 0.8) for name in ("tp-rand", "tp-topk")
    ]
    assert {c.rates for c in found} == {(16.0,)}
    assert len({c.label for c in found}) == len(found)
    of_table2 = {c.experiment for c in SCATTERNET_CNN.contestants(given, "fmnist", 8.0)}
    assert len(of_table2 & {c.experiment for c in found}) == 2
    page = table3_page(ratios.run(given))
    assert "| FMNIST | 8 | 0.4 | 80.00 ± 0.00 (89.79) | 80.00 ± 0.00 (90.04) | +0.00 ± 0.00 | +0.25 |" in page


def test_a_sweep_over_the_warm_up_has_nine_splits() -> None:
    splits = [method.warmup for method in SPLIT_SWEEPS[0].methods]
    assert splits == [(steps, budget) for steps in (0.2, 0.3, 0.4) for budget in (0.2, 0.3, 0.4)]


def test_a_sweep_without_table_2_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="tacit reproduce tp-topk/cnn --dataset fmnist --epsilon 3"):
        SPLIT_SWEEPS[1].contestants(setting(out=tmp_path, epsilons=(3.0,)))
