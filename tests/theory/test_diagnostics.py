from __future__ import annotations

import json

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import (
    Oracle,
    WarmupFold,
    debiased_score,
    oracle_capture,
    proxy_capture,
    split_capture,
    trajectory_capture,
)


def test_proxy_capture_counts_positive_scores_only() -> None:
    score = torch.tensor([3.0, -5.0, 1.0, 0.0])
    active = torch.tensor([True, True, False, False])
    assert proxy_capture(score, active) == pytest.approx(0.75)
    assert proxy_capture(-score.abs(), active) == 0


def test_oracle_capture_is_a_share_of_squares() -> None:
    gradient, active = torch.tensor([3.0, 4.0, -1.0]), torch.tensor([False, True, True])
    assert oracle_capture(gradient, active).not_private_value == pytest.approx(17 / 26)
    assert oracle_capture(torch.zeros(3), active).not_private_value == 0


def test_trajectory_capture_is_a_ratio_of_sums() -> None:
    first = (torch.tensor([3.0, 1.0]), torch.tensor([True, False]))
    second = (torch.tensor([0.0, 1.0]), torch.tensor([True, False]))
    alpha = trajectory_capture([first, second]).not_private_value
    assert alpha == pytest.approx(9 / 11)
    assert alpha != pytest.approx((9 / 10 + 0) / 2)
    assert trajectory_capture([(torch.zeros(2), torch.tensor([True, False]))]).not_private_value == 1


def test_random_support_captures_its_active_ratio() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(50, generator=generator)
    shares = [
        oracle_capture(gradient, torch.randperm(50, generator=generator) < 10).not_private_value
        for _ in range(3000)
    ]
    assert sum(shares) / len(shares) == pytest.approx(0.2, abs=0.005)


def test_proxy_capture_flatters_where_the_split_estimate_does_not() -> None:
    generator = torch.Generator().manual_seed(1)
    d, steps, k = 20_000, 8, 2000
    signal = torch.zeros(d)
    signal[:k] = 0.5
    releases = signal + torch.randn(steps, d, generator=generator)
    score = debiased_score(releases.square().sum(0), steps, 1.0)
    active = torch.zeros(d, dtype=torch.bool)
    active[score.topk(k).indices] = True
    true = oracle_capture(signal, active).not_private_value
    halves = [WarmupFold(releases[i::2].sum(0), steps // 2, 1.0) for i in range(2)]
    estimate = split_capture(halves)
    by_sum = torch.zeros(d, dtype=torch.bool)
    by_sum[releases[::2].sum(0).abs().topk(k).indices] = True
    assert proxy_capture(score, active) > 2 * true
    assert estimate.share(k) == pytest.approx(oracle_capture(signal, by_sum).not_private_value, abs=0.1)


def test_an_oracle_is_no_number_and_prints_its_warning() -> None:
    value = Oracle("capture", 0.4)
    for text in (str(value), repr(value), f"{value}", f"{[value]}"):
        assert "NOT PRIVATE" in text
    with pytest.raises(TypeError):
        float(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        assert value < 0.5  # type: ignore[operator]
    with pytest.raises(TypeError):
        value + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        f"{value:.2f}"
    with pytest.raises(TypeError):
        json.dumps({"capture": value})
    with pytest.raises(TypeError, match="NOT PRIVATE"):
        bool(value)


def test_refuses_a_support_of_another_shape() -> None:
    with pytest.raises(ArgumentError, match="boolean tensor"):
        oracle_capture(torch.ones(3), torch.tensor([0, 1]))
