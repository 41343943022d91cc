from __future__ import annotations

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import active_excess_loss, keep_threshold, silent_excess_loss, worth_keeping


@pytest.mark.parametrize(("curvature", "learning_rate"), [(2.0, 0.5), (1.0, 0.1), (0.5, 3.0)])
@pytest.mark.parametrize("steps", [0, 1, 7, 60])
def test_excess_loss_matches_simulated_training(curvature: float, learning_rate: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    signal, variance = 0.8, 0.3
    error = torch.full((200_000,), signal / curvature).double()
    for _ in range(steps):
        noise = variance**0.5 * torch.randn(len(error), generator=generator).double()
        error = error - learning_rate * (curvature * error + noise)
    losses = 0.5 * curvature * error.square()
    predicted = active_excess_loss(signal**2, curvature, learning_rate, steps, variance)
    assert predicted == pytest.approx(float(losses.mean()), rel=0.015)
    if steps == 0:
        assert predicted == pytest.approx(silent_excess_loss(signal**2, curvature))


@pytest.mark.parametrize("steps", [1, 5, 500])
@pytest.mark.parametrize("learning_rate", [0.01, 0.5, 1.5])
def test_threshold_decides_for_every_number_of_steps(steps: int, learning_rate: float) -> None:
    threshold = keep_threshold(1.2, learning_rate, 0.4)
    for factor, active_wins in [(0.9, False), (1.1, True)]:
        signal = factor * threshold
        active = active_excess_loss(signal, 1.2, learning_rate, steps, 0.4)
        assert (active < silent_excess_loss(signal, 1.2)) is active_wins


def test_one_step_rule_is_the_threshold_at_unit_step_and_stricter_below() -> None:
    squared = torch.linspace(0.01, 2.0, 300)
    at_unit_step = squared > keep_threshold(2.0, 0.5, 0.7)
    assert torch.equal(worth_keeping(squared, 0.7), at_unit_step)
    assert keep_threshold(2.0, 0.005, 0.7) == pytest.approx(0.7 * 0.01 / 1.99)


def test_refuses_a_diverging_step() -> None:
    with pytest.raises(ArgumentError, match="diverges"):
        keep_threshold(1.0, 2.0, 1.0)
