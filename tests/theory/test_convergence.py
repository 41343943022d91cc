from __future__ import annotations

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import (
    StationarityBound,
    effective_noise_dimension,
    full_stationarity,
    projected_stationarity,
)


def _bound(**changes: float) -> StationarityBound:
    arguments = {
        "initial_gap": 2.0,
        "steps": 10,
        "learning_rate": 0.25,
        "smoothness": 4.0,
        "mean_squared_bias": 0.0,
        "minibatch_variance": 0.0,
        "batch_size": 16,
        "mean_active": 3,
        "noise_variance": 0.0,
    }
    return projected_stationarity(**{**arguments, **changes})  # type: ignore[arg-type]


def _mean_squared_gradient(
    *,
    curvature: float,
    learning_rate: float,
    steps: int,
    start: torch.Tensor,
    noise: float,
    bias: torch.Tensor,
) -> float:
    """(1/T) Σ E‖∇L(θₜ)‖² on L = ½h‖θ‖², simulating many runs at once; ``noise`` is a variance."""
    generator = torch.Generator().manual_seed(0)
    theta = start.double().expand(20_000, -1).clone()
    total = 0.0
    for _ in range(steps):
        gradient = curvature * theta
        total += float(gradient.square().sum(1).mean())
        step = gradient + bias + noise**0.5 * torch.randn(theta.shape, generator=generator).double()
        theta = theta - learning_rate * step
    return total / steps


def test_each_term_is_attained_at_the_largest_learning_rate() -> None:
    """At η = 1/β on a quadratic of curvature β, the bound is exact but for the last step's bias and noise."""
    start, bias = torch.tensor([0.6, -0.8, 0.0]), torch.tensor([0.3, 0.0, 0.4])
    gap = 0.5 * 4.0 * 1.0
    for noise, b in [(0.0, torch.zeros(3)), (0.2, torch.zeros(3)), (0.2, bias)]:
        truth = _mean_squared_gradient(
            curvature=4.0, learning_rate=0.25, steps=10, start=start, noise=noise, bias=b
        )
        bound = _bound(initial_gap=gap, noise_variance=noise, mean_squared_bias=float(b.square().sum()))
        last_step = (float(b.square().sum()) + bound.perturbation) / 10
        cross_terms = 0.02 * truth
        assert truth <= bound.total + cross_terms
        assert truth == pytest.approx(bound.total - last_step, rel=0.02)


def test_minibatch_variance_counts_like_noise_over_the_batch() -> None:
    noisy, sampled = _bound(noise_variance=0.5), _bound(minibatch_variance=0.5 * 3 * 16)
    assert sampled.minibatch_variance == pytest.approx(noisy.perturbation)
    assert sampled.total == pytest.approx(noisy.total)
    assert noisy.perturbation == pytest.approx(4.0 * 0.25 * 3 * 0.5)


@pytest.mark.parametrize(("curvature", "learning_rate"), [(4.0, 0.05), (1.0, 0.25), (0.2, 0.1)])
def test_bound_holds_and_is_loose_as_documented(curvature: float, learning_rate: float) -> None:
    start = torch.tensor([1.0, 0.0, 0.0])
    truth = _mean_squared_gradient(
        curvature=curvature,
        learning_rate=learning_rate,
        steps=60,
        start=start,
        noise=0.1,
        bias=torch.zeros(3),
    )
    bound = _bound(initial_gap=0.5 * curvature, steps=60, learning_rate=learning_rate, noise_variance=0.1)
    assert truth < bound.total
    slack = 2 - learning_rate * curvature
    exact_in_the_limit = bound.optimization_progress / slack + bound.perturbation * curvature / 4.0 / slack
    assert truth <= exact_in_the_limit * 1.02


def test_total_is_the_sum_of_named_terms() -> None:
    assert StationarityBound(1.0, 20.0, 300.0, 4000.0).total == 4321.0


def test_full_gradient_bound_divides_every_term() -> None:
    projected = StationarityBound(1.0, 2.0, 3.0, 4.0)
    full = full_stationarity(projected, 0.5)
    assert full == StationarityBound(2.0, 4.0, 6.0, 8.0)
    assert full_stationarity(projected, 1.0) == projected
    assert effective_noise_dimension(20, 0.5) == 40


def test_full_gradient_bound_holds_where_coordinates_are_silent() -> None:
    # Two of four coordinates train; the silent ones keep their gradient, which α_T must account for.
    theta = torch.tensor([1.0, -1.0, 0.5, 0.5]).double()
    captured = full = 0.0
    for _ in range(20):
        captured += float((4.0 * theta)[:2].square().sum()) / 20
        full += float((4.0 * theta).square().sum()) / 20
        theta[:2] -= 0.1 * 4.0 * theta[:2]
    bound = _bound(initial_gap=0.5 * 4.0 * 2.5, steps=20, learning_rate=0.1)
    assert captured <= bound.total
    assert full <= full_stationarity(bound, captured / full).total


def test_refuses_what_the_theorem_does_not_cover() -> None:
    with pytest.raises(ArgumentError, match="1/smoothness"):
        _bound(learning_rate=0.3)
    with pytest.raises(ArgumentError, match="α_T"):
        full_stationarity(_bound(), 0.0)
