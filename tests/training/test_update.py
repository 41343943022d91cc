"""Only active coordinates move, and only they have a state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit import ArgumentError, Support
from tacit.release.mechanism import Released
from tacit.training.update import ActiveUpdate, WeightAverage
from training.small import SEED, flat, mask, network, plan, trainer

OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda named: torch.optim.SGD(named, lr=0.2, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda named: torch.optim.SGD(named, lr=0.2, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda named: torch.optim.Adam(named, lr=0.05, weight_decay=0.1),
    "adamw": lambda named: torch.optim.AdamW(named, lr=0.05, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda named: torch.optim.RMSprop(named, lr=0.01, momentum=0.5, weight_decay=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["tp-topk", "on-rand"])
def test_a_silent_coordinate_keeps_every_bit(method: str, optimizer: str) -> None:
    run = trainer(plan(method, epsilon=3.0), optimizer=OPTIMIZERS[optimizer], average=0.8)
    supports, silenced = set(), 0
    before = flat(run.model)
    for step in run.steps():
        active = mask(step.released.support)
        now = flat(run.model)
        assert torch.equal(now[~active], before[~active]), step.number
        assert bool((now[active] != before[active]).all())
        with run.final_weights():
            averaged = flat(run.model)
        assert torch.equal(averaged[~active], now[~active])
        assert torch.equal(flat(run.model), now)
        supports.add(step.released.support)
        silenced += int((~active).sum())
        before = now
    assert len(supports) > 1
    assert silenced


# One parameter, step by step ------------------------------------------------------------------------------


def vector(*values: float) -> nn.ParameterDict:
    return nn.ParameterDict({"w": nn.Parameter(torch.tensor(values, dtype=torch.float64))})


def active(model: nn.Module, *places: int) -> Support:
    return Support.of_coordinates(model, {"w": torch.tensor(places)})


def released(support: Support, *values: float) -> Released:
    return Released({"w": torch.tensor(values, dtype=torch.float64)}, support, 0.0, 1)


def test_momentum_of_what_falls_silent_is_dropped_and_of_what_stays_is_kept() -> None:
    model = vector(0, 0, 0, 0)
    update = ActiveUpdate(
        model, lambda n: torch.optim.SGD(n, lr=1.0, momentum=0.5), support := active(model, 0, 1, 2)
    )
    update.step(released(support, 8, 8, 8))
    update.change_support(support := active(model, 1, 3))
    update.step(released(support, 0, 0))
    assert model["w"].tolist() == [-8, -12, -8, 0]
    update.change_support(support := active(model, 0, 1, 2))
    update.step(released(support, 0, 0, 1))
    assert model["w"].tolist() == [-8, -14, -9, 0]
    tensors, _ = update.state()
    assert tensors["w/momentum_buffer"].tolist() == [0, 2, 1]


def test_weight_decay_pulls_active_coordinates_only() -> None:
    model = vector(4, 4)
    update = ActiveUpdate(
        model, lambda n: torch.optim.SGD(n, lr=0.5, weight_decay=1.0), support := active(model, 1)
    )
    update.step(released(support, 0))
    assert model["w"].tolist() == [4, 2]


def test_state_is_as_large_as_the_support() -> None:
    model = vector(*range(10))
    update = ActiveUpdate(model, OPTIMIZERS["adam"], support := active(model, 2, 5))
    update.step(released(support, 1, 1))
    assert {name: t.numel() for name, t in update.state()[0].items()} == {
        "w/step": 1,
        "w/exp_avg": 2,
        "w/exp_avg_sq": 2,
    }


def test_a_released_gradient_is_not_changed_by_the_optimizer() -> None:
    """Some optimizers write into the gradients they are given; scores and logs read the release later."""
    model = vector(1, 2)

    def factory(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(named, lr=1.0, momentum=0.5, nesterov=True, foreach=True)

    update = ActiveUpdate(model, factory, support := active(model, 0, 1))
    for _ in range(2):
        gradient = released(support, 3, 4)
        update.step(gradient)
        assert gradient.values["w"].tolist() == [3, 4]


def test_a_release_for_another_support_is_refused() -> None:
    model = vector(1, 2)
    update = ActiveUpdate(model, OPTIMIZERS["momentum"], active(model, 0))
    with pytest.raises(ArgumentError, match="belongs to another support"):
        update.step(released(active(model, 1), 1.0))
    assert model["w"].tolist() == [1, 2]


def test_an_optimizer_of_all_the_models_parameters_is_refused() -> None:
    model = network()
    support = Support.random(model, ratio=0.1, seed=1)
    with pytest.raises(ArgumentError, match=r"not from model.parameters\(\)"):
        ActiveUpdate(model, lambda named: torch.optim.SGD(model.parameters(), lr=0.1), support)


def test_groups_keep_their_own_rates_when_one_of_them_falls_silent() -> None:
    """With a schedule: weights have one rate, biases another, and no group where nothing is active."""

    def factory(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        groups = [
            {"params": [p for name, p in named if name.endswith("bias")], "lr": 0.5},
            {"params": [p for name, p in named if not name.endswith("bias")], "lr": 0.25},
        ]
        return torch.optim.SGD([group for group in groups if group["params"]])

    chosen = plan("tp-topk", always_active=["*.weight"], active_ratio=0.001)
    run = trainer(chosen, optimizer=factory, schedule=lambda step, steps: 0.5)
    for _ in run.steps():
        pass
    update = run._state.update
    assert [group["lr"] for group in update.optimizer.param_groups] == [0.25, 0.125]

    model = network()
    update = ActiveUpdate(model, factory, Support.all(model))
    update.change_support(Support.matching(model, ["*.weight"]))
    assert [group["lr"] for group in update.optimizer.param_groups] == update.rates == [0.25]


# The average of the weights -------------------------------------------------------------------------------


def test_the_average_follows_its_formula_and_starts_anew_with_a_coordinate() -> None:
    model = vector(0, 0, 0)
    average = WeightAverage(model, 0.9, active(model, 0, 1))

    def move(*values: float) -> Tensor:
        with torch.no_grad():
            model["w"].copy_(torch.tensor(values))
        average.update()
        with average.applied():
            return model["w"].detach().clone()

    assert torch.allclose(move(10, 20, 0), torch.tensor([9.0, 18.0, 0.0], dtype=torch.float64))
    beta = 2 / 11
    expected = torch.tensor([beta * 9, beta * 18 + (1 - beta) * 40, 0], dtype=torch.float64)
    assert torch.allclose(move(0, 40, 0), expected)
    average.change_support(active(model, 1, 2))
    with average.applied():
        assert torch.allclose(model["w"], torch.tensor([0, float(expected[1]), 0], dtype=torch.float64))
    third = move(0, 0, 6)
    assert torch.allclose(third, torch.tensor([0, 0.25 * float(expected[1]), 4.5], dtype=torch.float64))
    assert model["w"].tolist() == [0, 0, 6]


def test_the_trainer_averages_as_the_formula_says() -> None:
    run = trainer(plan("on-rand", epsilon=3.0), average=0.7, seed=SEED)
    average = before = flat(run.model)
    active_before = torch.zeros(len(before), dtype=torch.bool)
    for place, step in enumerate(run.steps()):
        theta, now = flat(run.model), mask(step.released.support)
        beta = min(0.7, (1 + place) / (10 + place))
        average = torch.where(active_before & now, average, before)
        average = torch.where(now, beta * average + (1 - beta) * theta, theta)
        before, active_before = theta, now
        with run.final_weights():
            torch.testing.assert_close(flat(run.model), average)


@pytest.mark.parametrize("decay", [0.0, 1.0, -1.0, 2.0])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ArgumentError, match=r"decay of the weight average must lie in \(0, 1\)"):
        trainer(plan("dp-sgd"), average=decay)


def test_a_support_of_another_model_leaves_the_update_as_it_was() -> None:
    model = torch.nn.Linear(3, 2)
    update = ActiveUpdate(model, lambda named: torch.optim.SGD(named, lr=0.1), Support.all(model))
    before = update.support
    with pytest.raises(ArgumentError, match="another model"):
        update.change_support(Support.all(torch.nn.Linear(4, 2)))
    assert update.support is before
