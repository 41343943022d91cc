from __future__ import annotations

import itertools

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import (
    break_even_energy,
    full_error,
    noise_std,
    random_silent_energy,
    restricted_error,
    restriction_helps,
    worth_keeping,
)


def _gradient(d: int = 12) -> torch.Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(3)).double()


def test_noise_std_is_that_of_a_released_coordinate() -> None:
    sigma, clip, batch = 1.7, 0.6, 32
    z = sigma * clip * torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    measured = float((z / batch).std())
    nu = noise_std(sigma, clip, batch)
    assert nu == pytest.approx(measured, rel=0.01)
    assert nu != pytest.approx(1.5 * measured, rel=0.01)


def test_error_is_the_mean_squared_error_of_a_masked_noisy_step() -> None:
    g, variance = _gradient(), 0.3
    active = torch.arange(12) % 3 == 0
    noise = variance**0.5 * torch.randn(200_000, 12, generator=torch.Generator().manual_seed(1)).double()
    measured = float((active * (g + noise) - g).square().sum(1).mean())
    predicted = restricted_error(float(g[~active].square().sum()), int(active.sum()), variance)
    assert predicted == pytest.approx(measured, rel=0.01)
    dense = float(noise.square().sum(1).mean())
    assert full_error(12, variance) == pytest.approx(dense, rel=0.01)


def test_kept_coordinates_are_the_best_of_all_supports() -> None:
    g, variance = _gradient(10), 0.5

    def error(support: tuple[int, ...]) -> float:
        silent = torch.ones(10, dtype=torch.bool)
        silent[list(support)] = False
        return restricted_error(float(g[silent].square().sum()), len(support), variance)

    best = min((s for k in range(11) for s in itertools.combinations(range(10), k)), key=error)
    assert worth_keeping(g.square(), variance).nonzero().flatten().tolist() == list(best)
    assert 0 < len(best) < 10


@pytest.mark.parametrize("silent", [0.0, 0.5, 1.39, 1.41, 5.0])
def test_restriction_helps_exactly_below_break_even(silent: float) -> None:
    d, k, variance = 10, 3, 0.2
    assert break_even_energy(d, k, variance) == pytest.approx(1.4)
    lower = restricted_error(silent, k, variance) < full_error(d, variance)
    assert restriction_helps(silent, d, k, variance) is lower


def test_random_support_loses_its_share_of_energy() -> None:
    g = _gradient()
    energy = g.square()
    losses = [
        float(energy.sum() - energy[list(chosen)].sum()) for chosen in itertools.combinations(range(12), 4)
    ]
    assert random_silent_energy(float(energy.sum()), 12, 4) == pytest.approx(sum(losses) / len(losses))


def test_refuses_more_active_than_there_are() -> None:
    with pytest.raises(ArgumentError, match="cannot be active out of 3"):
        break_even_energy(3, 4, 1.0)
    with pytest.raises(ArgumentError, match="noise variance"):
        restricted_error(1.0, 1, -1.0)
    with pytest.raises(ArgumentError, match="batch size"):
        noise_std(1.0, 1.0, 0)
