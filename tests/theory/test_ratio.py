from __future__ import annotations

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import CaptureEstimate, RatioChoice, choose_active, split_capture
from tacit_papers.theory.synthetic import power_law, spikes, true_capture, warm_up

D = 10_000

SEEDS = range(60)
# Noise variances of the warm-up mean at which three folds know a total energy of 1 to 1.5, 5 and 15 %.
LOW, MIDDLE, HIGH = 0.005 / D**0.5, 0.017 / D**0.5, 0.05 / D**0.5


def _choices(
    signal: torch.Tensor, *, noise: float, folds: int = 3, noise_after: float = 1.0
) -> list[tuple[RatioChoice, float]]:
    """The choice and the true capture of the support it leads to, ranked on the whole warm-up, per seed."""
    results = []
    for seed in SEEDS:
        warm, mean = warm_up(signal, noise=noise, folds=folds, seed=seed)
        choice = choose_active(split_capture(warm), noise_variance=noise_after)
        results.append((choice, true_capture(signal, mean.abs(), choice.active)))
    return results


@pytest.mark.parametrize("folds", [2, 3, 4])
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_finds_the_useful_coordinates_among_many_useless(folds: int, share: float) -> None:
    results = _choices(spikes(share, D), noise=LOW, folds=folds)
    ratios = sorted(choice.ratio for choice, _ in results)
    assert 0.78 * share <= ratios[0]
    assert ratios[-1] <= 2 * share
    assert sum(capture < 0.8 for _, capture in results) <= 2


@pytest.mark.parametrize("noise", [LOW, MIDDLE, HIGH])
def test_stays_dense_when_energy_is_spread_evenly(noise: float) -> None:
    results = _choices(spikes(1.0, D), noise=noise)
    assert sum(not choice.dense for choice, _ in results) <= 3
    assert min(choice.ratio for choice, _ in results) > 0.7


def test_stays_dense_on_pure_noise() -> None:
    for folds in (2, 3, 4):
        for seed in SEEDS:
            warm, _ = warm_up(torch.zeros(D).double(), noise=MIDDLE, folds=folds, seed=seed)
            assert choose_active(split_capture(warm), noise_variance=1.0).dense


def test_rarely_leaves_out_more_than_the_tolerance() -> None:
    worst = []
    for signal in (spikes(0.05, D), spikes(0.2, D), power_law(D)):
        for noise in (LOW, MIDDLE, HIGH):
            worst += [capture for _, capture in _choices(signal, noise=noise)]
    assert sum(capture < 0.8 for capture in worst) <= 0.02 * len(worst)
    assert min(worst) > 0.7


def test_more_folds_find_smaller_supports() -> None:
    def median(folds: int) -> float:
        return sorted(c.ratio for c, _ in _choices(spikes(0.2, D), noise=LOW, folds=folds))[30]

    assert median(4) < median(3) < median(2)


def test_stays_dense_where_the_next_phase_has_too_little_noise_to_save() -> None:
    signal = spikes(0.05, D)
    warm, _ = warm_up(signal, noise=LOW, folds=3, seed=0)
    estimate = split_capture(warm)
    sparse = choose_active(estimate, noise_variance=1.0)
    assert not sparse.dense
    outside = float(estimate.uncaptured[estimate.counts == sparse.active])
    quiet = choose_active(estimate, noise_variance=0.01 * outside / D)
    assert quiet.ratio > sparse.ratio
    silent = choose_active(estimate, noise_variance=0.0)
    assert silent.dense
    assert "less than the gradient energy they would lose" in silent.reason


def _estimate(uncaptured: list[float], variance: float = 0.0) -> CaptureEstimate:
    outside = torch.tensor(uncaptured).double()
    n = len(uncaptured)
    inside = 1 - outside
    flat = torch.full((n,), variance).double()
    return CaptureEstimate(torch.arange(1, n + 1), inside, outside, flat, flat)


def test_a_dip_at_one_k_proves_nothing() -> None:
    monotone = _estimate([0.9, 0.5, 0.3, 0.15, 0.1, 0.1, 0.05, 0.0, 0.0, 0.0])
    assert choose_active(monotone, noise_variance=1.0).active == 4
    dip = _estimate([0.9, 0.1, 0.3, 0.15, 0.1, 0.1, 0.05, 0.0, 0.0, 0.0])
    assert choose_active(dip, noise_variance=1.0).active == 4


def test_caution_counts_deviations_of_the_contrast() -> None:
    # D = 0.8·0.1 − 0.2·0.9 = −0.1 at k = 4, with standard deviation sqrt((0.64 + 0.04)·v).
    curve = [0.9, 0.7, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0]
    for caution in (1.0, 2.0):
        limit = (0.1 / caution) ** 2 / 0.68
        assert choose_active(_estimate(curve, 0.99 * limit), noise_variance=9, caution=caution).active == 4
        assert choose_active(_estimate(curve, 1.01 * limit), noise_variance=9, caution=caution).dense


def test_every_choice_gives_its_reason_in_one_sentence() -> None:
    choices = [
        choose_active(_estimate([0.5, 0.1, 0.05, 0.0]), noise_variance=1.0),
        choose_active(_estimate([0.5, 0.1, 0.05, 0.0]), noise_variance=0.0),
        choose_active(_estimate([0.75, 0.5, 0.25, 0.0]), noise_variance=1.0),
        choose_active(_estimate([0.75, 0.5, 0.25, 0.0], variance=9.0), noise_variance=1.0),
    ]
    assert [choice.active for choice in choices] == [2, 4, 4, 4]
    assert len({choice.reason for choice in choices}) == 4
    for choice in choices:
        assert choice.reason.endswith(".")
        assert ". " not in choice.reason
        assert "\n" not in choice.reason
        assert str(choice.active) in choice.reason


def test_refuses_a_tolerance_of_one() -> None:
    with pytest.raises(ArgumentError, match="tolerance"):
        choose_active(_estimate([0.0]), noise_variance=1.0, tolerance=1.0)
