from __future__ import annotations

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import CaptureEstimate, WarmupFold, held_out_capture, split_capture
from tacit_papers.theory.synthetic import power_law, spikes, true_capture, warm_up

D = 10_000


def _fold(values: list[float], steps: int = 1, noise: float = 0.0) -> WarmupFold:
    return WarmupFold(torch.tensor(values), steps, noise)


def test_without_noise_the_curve_is_the_cumulative_energy_in_ranking_order() -> None:
    estimate = held_out_capture(
        torch.tensor([-3.0, 0.5, -0.0, 2.0, 1e-30]), _fold([2.0, 4.0, 6.0, 8.0, 10.0], 2)
    )
    assert estimate.counts.tolist() == [1, 2, 3, 4, 5]
    # Best first: 4², 2², 5², then 3², 1².
    assert estimate.captured.tolist() == pytest.approx([16, 20, 45, 54, 55])
    assert estimate.uncaptured.tolist() == pytest.approx([39, 35, 10, 1, 0])
    assert estimate.total == pytest.approx(55)
    assert estimate.share(3) == pytest.approx(45 / 55)


def test_ties_count_as_if_broken_at_random() -> None:
    estimate = held_out_capture(torch.ones(4), _fold([1.0, 2.0, 3.0, 4.0]))
    assert estimate.captured.tolist() == pytest.approx([7.5, 15, 22.5, 30])


def test_buckets_agree_with_a_full_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    ranking, values = torch.randn(2, 50_000, generator=generator)
    estimate = held_out_capture(ranking, WarmupFold(values, 1, 0.3))
    exact = (values[ranking.argsort(descending=True)].double().square() - 0.3).cumsum(0)[estimate.counts - 1]
    assert float((estimate.captured - exact).abs().max()) < 0.001 * 50_000


def _errors(folds: int, signal: torch.Tensor, noise: float) -> tuple[torch.Tensor, CaptureEstimate]:
    """(estimated − true uncaptured energy) over seeds and grid points, truth for each fold's own ranking."""
    errors = []
    for seed in range(60):
        warm, _ = warm_up(signal, noise=noise, folds=folds, seed=seed)
        estimate = split_capture(warm)
        whole = torch.stack([f.gradient_sum for f in warm]).sum(0)
        truth = torch.stack(
            [
                held_out_capture(
                    (whole - f.gradient_sum).abs(), WarmupFold(signal.float(), 1, 0.0)
                ).uncaptured
                for f in warm
            ]
        ).mean(0)
        errors.append(estimate.uncaptured - truth)
    return torch.stack(errors), estimate


@pytest.mark.parametrize("folds", [2, 3, 4])
@pytest.mark.parametrize(
    "signal", [spikes(0.05, D), power_law(D), torch.zeros(D).double()], ids=["5%", "power", "none"]
)
def test_estimate_is_unbiased_and_its_deviation_is_safe_but_not_wasteful(
    folds: int, signal: torch.Tensor
) -> None:
    errors, estimate = _errors(folds, signal, noise=4e-4)
    std = errors.std(0)
    assert bool((errors.mean(0).abs() <= 4.5 * std / len(errors) ** 0.5 + 1e-9).all())
    inside = (estimate.counts > D // 50) & (estimate.counts < D - D // 50)
    ratio = estimate.uncaptured_variance.sqrt()[inside] / std[inside]
    # Sixty runs know a standard deviation to about 10 %.
    assert 0.9 < float(ratio.median()) < 1.5
    assert float(ratio.min()) > 0.75


def test_measuring_on_the_ranking_data_itself_would_flatter() -> None:
    signal = spikes(0.05, D)
    warm, _ = warm_up(signal, noise=1e-4, folds=2, seed=0)
    honest = held_out_capture(warm[0].gradient_sum.abs(), warm[1])
    flattering = held_out_capture(warm[1].gradient_sum.abs(), warm[1])
    k = D // 20
    truth = true_capture(signal, warm[0].gradient_sum.abs(), k)
    assert honest.share(k) == pytest.approx(truth, abs=0.1)
    assert flattering.share(k) > truth + 0.15


def test_the_cross_product_of_halves_understates_what_is_outside() -> None:
    """Why the estimate squares the held-out mean instead of multiplying the two means."""
    signal = spikes(1.0, D)
    crossed = squared = 0.0
    for seed in range(40):
        (first, second), _ = warm_up(signal, noise=1e-3, folds=2, seed=seed, steps=1)
        order = first.gradient_sum.abs().argsort(descending=True)[D // 2 :]
        crossed += float((first.gradient_sum[order] * second.gradient_sum[order]).sum()) / 40
        squared += float((second.gradient_sum[order].square() - second.noise_variance).sum()) / 40
    assert squared == pytest.approx(0.5, abs=0.1)
    assert crossed < 0.25


def test_the_support_ranked_on_everything_captures_more_than_estimated() -> None:
    signal = spikes(0.05, D)
    warm, mean = warm_up(signal, noise=4e-4, folds=3, seed=5)
    estimate = split_capture(warm)
    for k in (D // 20, D // 10, D // 5):
        assert true_capture(signal, mean.abs(), k) > estimate.share(k) - 0.02


def test_refuses_unusable_folds() -> None:
    with pytest.raises(ArgumentError, match="two to four"):
        split_capture([_fold([1.0])])
    with pytest.raises(ArgumentError, match="same coordinates"):
        split_capture([_fold([1.0]), _fold([1.0, 2.0])])
    with pytest.raises(ArgumentError, match="not finite"):
        split_capture([_fold([1.0, float("nan")]), _fold([1.0, 2.0])])
    with pytest.raises(ArgumentError, match="not finite"):
        held_out_capture(torch.ones(2), _fold([1.0, float("inf")]))
    with pytest.raises(ArgumentError, match="flat, non-empty"):
        WarmupFold(torch.ones(2, 2), 1, 1.0)
    with pytest.raises(ArgumentError, match="3 scores"):
        held_out_capture(torch.ones(2), _fold([1.0, 2.0, 3.0]))
