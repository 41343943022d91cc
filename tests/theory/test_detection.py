"""What stands out from noise, and what the rest may hold together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tacit import ArgumentError
from tacit.theory import Detection, choose_standing, detect, floor_weight


def energies(groups: int, members: int, ratio: Tensor | float, seed: int, noise: float = 1.0) -> Tensor:
    """Energies of groups whose coordinates have a signal of variance ``ratio`` times that of the noise."""
    generator = torch.Generator().manual_seed(seed)
    scale = noise * (1 + torch.as_tensor(ratio, dtype=torch.float64)).sqrt()
    draws = torch.randn(groups, members, generator=generator, dtype=torch.float64)
    return (draws * (scale[:, None] if scale.dim() else scale)).square().sum(1)


@pytest.mark.parametrize("members", [1, 8, 300])
def test_noise_stands_out_once_in_a_hundred_and_is_not_taken_for_signal(members: int) -> None:
    shares, sparse = [], 0
    for seed in range(40):
        found = detect(energies(1000, members, 0.0, seed, noise=3.0), members, 9.0)
        shares.append(float(found.standing.double().mean()))
        assert 0 < found.ratio_outside < 0.4
        sparse += not choose_standing([found], 3.0).dense
    assert sum(shares) / 40 == pytest.approx(0.01, abs=0.002)
    assert not sparse


@pytest.mark.parametrize(("members", "ratio"), [(1, 0.05), (1, 0.3), (1, 2.0), (16, 0.02), (16, 0.2)])
def test_the_bound_covers_signals_that_are_too_weak_to_be_seen_one_by_one(members: int, ratio: float) -> None:
    """Two standard errors, from one side: about one of fifty may miss. Far above the truth it would be of no use."""
    bounds = [detect(energies(2000, members, ratio, seed), members, 1.0).ratio_outside for seed in range(100)]
    assert sum(bound >= ratio for bound in bounds) >= 92
    assert sorted(bounds)[50] < 2 * ratio + 0.2 / members


def test_the_signal_inside_is_bounded_from_below_although_it_was_selected() -> None:
    truth, held, missed = torch.zeros(1000, dtype=torch.float64), [], 0
    truth[:30] = 6.0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        sums = truth.sqrt() + torch.randn(1000, generator=generator, dtype=torch.float64)
        found = detect(sums.square(), 1, 1.0)
        really = float(truth[found.standing].sum())
        missed += found.inside > really
        held.append(found.inside / really)
    assert missed <= 2
    assert sum(held) / 60 < 0.9
    truth[:30] = 50.0
    assert detect(truth, 1, 1.0).inside > 0.6 * float(truth.sum())


def test_many_weak_signals_stay_active_and_many_useless_columns_do_not() -> None:
    """A few strong columns either way. Told apart only by what the others hold together."""
    for seed in range(10):
        ratio = torch.zeros(2000)
        ratio[:40] = 60.0
        useless = choose_standing([detect(energies(2000, 1, ratio, seed), 1, 1.0)], 3.0)
        assert 30 <= useless.active < 100, useless.reason
        assert useless.reason.startswith(f"{useless.active} of 2000 coordinates stay active")
        ratio[40:] = 0.6
        weak = choose_standing([detect(energies(2000, 1, ratio, seed), 1, 1.0)], 3.0)
        assert weak.dense
        assert "too much to be silenced" in weak.reason


def test_the_longer_the_run_the_more_coordinates_deserve_to_stay() -> None:
    ratio = torch.zeros(2000)
    ratio[:40] = 60.0
    ratio[40:] = 0.03
    found = detect(energies(2000, 1, ratio, 1), 1, 1.0)
    assert not choose_standing([found], 1.0).dense
    assert choose_standing([found], 300.0).dense
    assert floor_weight(found, 300.0) > floor_weight(found, 3.0) > floor_weight(found, 1.0) > 0


def test_few_groups_prove_nothing() -> None:
    ratio = torch.tensor([60.0] * 3 + [0.0] * 10)
    found = detect(energies(13, 1, ratio, 3), 1, 1.0)
    assert choose_standing([found], 3.3).dense
    assert floor_weight(found, 3.3) > 0.75


def test_where_everything_or_nothing_stands_out_all_stay() -> None:
    everything = detect(torch.full((50,), 1e6), 1, 1.0)
    assert everything.kept == 50
    assert everything.ratio_outside == 0
    assert choose_standing([everything], 2.0).dense
    assert choose_standing([detect(torch.full((50,), 0.1), 1, 1.0)], 2.0).dense


def test_energies_that_no_ratio_explains_are_no_proof() -> None:
    """All just below the cut: more than a truncated chi-square of any scale would have."""
    found = detect(torch.full((50,), 6.6), 1, 1.0)
    assert math.isinf(found.ratio_outside)
    assert floor_weight(found, 1.0) == 1
    strong = Detection(torch.tensor([True, False]), 1, 1e9, math.inf)
    assert choose_standing([strong], 1.0).dense


@pytest.mark.parametrize("members", [1, 2, 100, 100_000])
def test_extreme_energies_give_numbers(members: int) -> None:
    for scale in (0.0, 1e-300, 1e-3, 1.0, 1e3, 1e300):
        found = detect(energies(20, min(members, 100), 0.0, 1) * scale, members, 1.0)
        assert not math.isnan(found.inside)
        assert found.ratio_outside >= 0
        assert 0 <= floor_weight(found, 2.0) <= 1
        assert choose_standing([found], 2.0).active >= 1


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="not negative"):
        detect(torch.tensor([1.0, -1.0]), 1, 1.0)
    with pytest.raises(ArgumentError, match="not negative"):
        detect(torch.tensor([1.0, math.nan]), 1, 1.0)
    with pytest.raises(ArgumentError, match="noise variance"):
        detect(torch.ones(2), 1, 0.0)
    with pytest.raises(ArgumentError, match="growth"):
        choose_standing([detect(torch.ones(2), 1, 1.0)], 0.0)
