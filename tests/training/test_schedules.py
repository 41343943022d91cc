"""Learning-rate schedules, alone and in the trainer."""

from __future__ import annotations

import itertools

import pytest
import torch

from tacit.training import schedules
from training.small import STEPS, plan, trainer


def test_schedules_fall_from_one_to_zero() -> None:
    for schedule in (schedules.cosine, schedules.linear):
        factors = [schedule(step, 100) for step in range(101)]
        assert factors[0] == 1
        assert factors[50] == pytest.approx(0.5)
        assert factors[100] == pytest.approx(0)
        assert all(a > b for a, b in itertools.pairwise(factors))
    assert {schedules.constant(step, 10) for step in range(10)} == {1.0}


def test_a_warm_up_rises_and_hands_over() -> None:
    schedule = schedules.warmed_up(0.2, schedules.linear)
    factors = [schedule(step, 20) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [1 - step / 16 for step in range(16)]
    assert schedules.warmed_up(0.5, schedules.constant)(0, 1) == 1


def test_the_trainer_sets_the_rate_of_every_step() -> None:
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step()

    run = trainer(plan("on-rand"), optimizer=lambda named: Watched(named, lr=0.4), schedule=schedules.cosine)
    run.fit(progress=False)
    assert rates == [0.4 * schedules.cosine(step, STEPS) for step in range(STEPS)]
