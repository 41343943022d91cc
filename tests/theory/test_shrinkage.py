"""The signal share of groups, against simulations in which the truth is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tacit.errors import ArgumentError
from tacit.theory import signal_share


def energies(signal: Tensor, members: int, noise_variance: float, seed: int = 0) -> Tensor:
    """‖S‖² of groups whose coordinates have these signal variances, in units of the noise variance."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(signal), members, generator=generator, dtype=torch.float64)
    return (values.square() * (1 + signal[:, None]) * noise_variance).sum(1)


@pytest.mark.parametrize(("members", "noise_variance"), [(1, 1.0), (16, 1e-8), (4, 1e6)])
def test_groups_with_signal_are_told_from_groups_without(members: int, noise_variance: float) -> None:
    signal = torch.cat([torch.full((50,), 100.0), torch.zeros(450)]).double()
    share = signal_share(energies(signal, members, noise_variance), members, noise_variance)
    assert share[:50].median() > 0.95
    assert share[50:].median() < 0.25
    assert bool(((share >= 0) & (share <= 1)).all())


@pytest.mark.parametrize("level", [0.0, 0.05, 30.0])
def test_a_layer_in_which_no_group_stands_out_gets_one_share(level: float) -> None:
    signal = torch.full((400,), level, dtype=torch.float64)
    share = signal_share(energies(signal, 64, 1.0), 64, 1.0)
    assert share.std() / (share.mean() + 0.02) < 0.25


def test_one_coordinate_per_group_gives_wieners_factor() -> None:
    """With Gaussian signals of one size the posterior mean of the factor is λ/(1 + λ) itself."""
    share = signal_share(energies(torch.full((20_000,), 4.0).double(), 1, 1.0), 1, 1.0)
    assert float(share.mean()) == pytest.approx(0.8, abs=0.06)


def test_more_energy_never_means_a_smaller_share() -> None:
    values = torch.rand(200, dtype=torch.float64).sort().values * 50
    share = signal_share(values, 4, 1.0)
    assert bool((share.diff() >= -1e-6).all())


def test_nonsense_is_refused() -> None:
    for bad in (torch.ones(2, 2), torch.tensor([-1.0]), torch.tensor([float("nan")])):
        with pytest.raises(ArgumentError, match="energies"):
            signal_share(bad, 1, 1.0)
    with pytest.raises(ArgumentError, match="noise variance"):
        signal_share(torch.ones(3), 1, 0.0)


def test_signal_that_is_seen_in_part_counts_for_more() -> None:
    part = energies(torch.full((20_000,), 4.0).double(), 1, 1.0)
    whole, half = (float(signal_share(part, 1, 1.0, seen).mean()) for seen in (1.0, 0.5))
    assert (whole, half) == (pytest.approx(4 / 5, abs=0.06), pytest.approx(8 / 9, abs=0.04))
    with pytest.raises(ArgumentError, match="seen must lie in"):
        signal_share(part, 1, 1.0, 0.0)
