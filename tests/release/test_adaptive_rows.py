"""Rows that a step chooses: as a walk over all rows would choose them, with the noise of one Gaussian mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from release.statistics import LEAST, looks_like
from tacit.errors import ArgumentError, ModelError
from tacit.plan import Spend, epsilon_of
from tacit.raw.row_tables import RowSum, Terms
from tacit.release import noise as noise_module
from tacit.release.adaptive_rows import AdaptiveTable, multipliers
from tacit.release.noise import SecureNoise

ROWS, SCALE = 20_000, 0.7


def table(threshold: float = 2.0, rows: int = ROWS, width: int = 1) -> tuple[AdaptiveTable, nn.Parameter]:
    weight = nn.Parameter(torch.full((rows, width), 0.25))
    return AdaptiveTable("words.weight", weight, SecureNoise(), lambda: 0.5, threshold), weight


def sums(rows: Tensor, value: float, shape: tuple[int, int] = (ROWS, 1)) -> RowSum:
    vectors = torch.full((1, shape[1]), value, dtype=torch.float64)
    ones = torch.ones(len(rows), dtype=torch.float64)
    return RowSum(shape, [Terms(rows.sort().values, vectors, torch.zeros_like(rows), ones)])


def likely(found: int, among: int, chance: float) -> bool:
    return bool(stats.binomtest(found, among, chance).pvalue > LEAST)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
def test_both_answers_together_cost_what_one_of_the_plans_noise_costs(share: float, sigma: float) -> None:
    of_counts, of_gradients = multipliers(sigma, share)
    assert 1 / of_counts**2 + 1 / of_gradients**2 == pytest.approx(1 / sigma**2)
    assert of_counts / of_gradients == pytest.approx(share / (1 - share))
    one = epsilon_of([Spend(1.0, sigma, 1)], 1e-6, "pld")
    both = epsilon_of([Spend(1.0, of_counts, 1), Spend(1.0, of_gradients, 1)], 1e-6, "pld")
    assert both == pytest.approx(one, rel=2e-3)


@pytest.mark.parametrize("threshold", [0.5, 2.0, 3.0])
def test_rows_that_nobody_touches_are_chosen_as_often_as_noise_reaches_the_threshold(
    threshold: float,
) -> None:
    lazy, _ = table(threshold)
    touched = torch.arange(0, ROWS, 7)
    found = torch.cat([lazy.choose(sums(touched, 0.0), SCALE) for _ in range(5)])
    chance = float(stats.norm.sf(threshold))
    for of_touched in (True, False):
        mine = found[(found % 7 == 0) == of_touched]
        among = 5 * (len(touched) if of_touched else ROWS - len(touched))
        assert likely(len(mine), among, chance)
        assert stats.kstest(mine.numpy() / ROWS, "uniform").pvalue > LEAST


@pytest.mark.parametrize("count", [0.3, 1.4, 3.0])
def test_touched_rows_are_chosen_as_often_as_their_count_and_noise_reach_the_threshold(count: float) -> None:
    lazy, _ = table(2.0)
    touched = torch.arange(100, 8100)
    found = lazy.choose(sums(touched, count), SCALE)
    mine = found[(found >= 100) & (found < 8100)]
    assert likely(len(mine), len(touched), float(stats.norm.sf(2.0 - count / SCALE)))
    assert torch.equal(found, found.unique())


def test_places_are_taken_independently_as_a_walk_over_them_would_take_them() -> None:
    lazy, _ = table()
    chance, places, repeats = 0.3, 6, 6000
    seen = np.zeros(2**places)
    for _ in range(repeats):
        seen[sum(1 << place for place in lazy._jumps(places, math.log(chance)).tolist())] += 1
    ones = np.array([bin(pattern).count("1") for pattern in range(2**places)])
    expected = repeats * chance**ones * (1 - chance) ** (places - ones)
    assert stats.chisquare(seen, expected).pvalue > LEAST


def test_a_coarse_lattice_does_not_tell_rows_that_nobody_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "LATTICE_BITS", 0)
    lazy, _ = table(1.0)
    touched = torch.arange(ROWS // 2)
    chosen = torch.cat([lazy.choose(sums(touched, 0.0), 0.9) for _ in range(4)])
    with_noise, by_jumps = int((chosen < ROWS // 2).sum()), int((chosen >= ROWS // 2).sum())
    table_of = [[with_noise, 2 * ROWS - with_noise], [by_jumps, 2 * ROWS - by_jumps]]
    assert stats.chi2_contingency(table_of).pvalue > LEAST
    assert not likely(by_jumps, 2 * ROWS, float(stats.norm.sf(1.0)))


def test_without_noise_all_rows_that_occur_are_chosen_and_no_other() -> None:
    lazy, _ = table()
    touched = torch.tensor([3, 5, 19_999])
    assert lazy.choose(sums(touched, 0.1), 0.0).tolist() == touched.tolist()


def test_a_threshold_that_noise_never_reaches_costs_no_walk() -> None:
    weight = nn.Parameter(torch.zeros(1).expand(10**12, 1))
    lazy = AdaptiveTable("words.weight", weight, SecureNoise(), lambda: 0.5, 12.0)
    assert lazy.choose(sums(torch.tensor([7]), 100.0, (10**12, 1)), 1.0).tolist() == [7]


def test_chosen_rows_move_by_their_sum_and_noise_and_all_others_keep_every_bit() -> None:
    lazy, weight = table(rows=50, width=4000)
    touched = torch.tensor([1, 4, 30])
    lazy.move(sums(touched, 8.0, (50, 4000)), torch.tensor([4, 17, 30]), 3.0, 4)
    moved = weight.detach() - 0.25
    assert sorted(moved.any(1).nonzero().flatten().tolist()) == [4, 17, 30]
    for row, mean in ((4, -1.0), (17, 0.0), (30, -1.0)):
        assert looks_like(moved[row] - mean, 0.5 * 3.0 / 4)


def test_ids_thresholds_and_shares_that_make_no_sense_are_refused() -> None:
    lazy, weight = table()
    with pytest.raises(ModelError, match="its rows are 0 to 19999"):
        lazy.read(torch.tensor([ROWS]))
    with pytest.raises(ArgumentError, match="threshold"):
        AdaptiveTable("words", weight, SecureNoise(), lambda: 1.0, 0.0)
    with pytest.raises(ArgumentError, match="selection_share"):
        multipliers(1.0, 1.0)
