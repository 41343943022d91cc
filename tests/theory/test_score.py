from __future__ import annotations

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import debiased_score, score_variance

G = torch.tensor([0.0, 0.2, 1.0, -2.0]).double()
NU2, STEPS, RUNS = 0.7, 5, 200_000


@pytest.fixture(scope="module")
def scores() -> torch.Tensor:
    """The score of RUNS independent warm-ups of STEPS steps."""
    generator = torch.Generator().manual_seed(0)
    sum_of_squares = torch.zeros(RUNS, len(G)).double()
    for _ in range(STEPS):
        noise = NU2**0.5 * torch.randn(RUNS, len(G), generator=generator).double()
        sum_of_squares += (G + noise).square()
    return debiased_score(sum_of_squares, STEPS, NU2)


def test_score_is_unbiased_for_the_squared_gradient(scores: torch.Tensor) -> None:
    standard_error = scores.std(0) / RUNS**0.5
    assert bool(((scores.mean(0) - G.square()).abs() < 4 * standard_error).all())


def test_score_variance_is_exact(scores: torch.Tensor) -> None:
    torch.testing.assert_close(score_variance(G.square(), STEPS, NU2), scores.var(0), rtol=0.03, atol=0)


def test_noise_variance_may_be_the_mean_over_steps() -> None:
    generator = torch.Generator().manual_seed(1)
    variances = [0.2, 0.5, 1.4]
    squares = sum(
        (1.0 + v**0.5 * torch.randn(RUNS, generator=generator).double()).square() for v in variances
    )
    assert isinstance(squares, torch.Tensor)
    score = debiased_score(squares, 3, sum(variances) / 3)
    assert float(score.mean()) == pytest.approx(1.0, abs=4 * float(score.std()) / RUNS**0.5)


def test_sampling_variance_stays_in_the_score() -> None:
    """What Lemma 5.2's model leaves out: Poisson sampling adds Σᵢ q(1−q)gᵢ²/B² to the expected score."""
    generator = torch.Generator().manual_seed(2)
    examples = torch.randn(40, generator=generator).double() + 0.3
    q = 0.25
    batch = q * len(examples)
    drawn = (torch.rand(RUNS, len(examples), generator=generator) < q).double()
    released = drawn @ examples / batch + NU2**0.5 * torch.randn(RUNS, generator=generator).double()
    score = debiased_score(released.square(), 1, NU2)
    sampling = float(q * (1 - q) * examples.square().sum()) / batch**2
    expected = float(examples.mean()) ** 2 + sampling
    assert float(score.mean()) == pytest.approx(expected, abs=4 * float(score.std()) / RUNS**0.5)
    assert sampling > 8 * float(score.std()) / RUNS**0.5


def test_refuses_a_warm_up_without_steps() -> None:
    with pytest.raises(ArgumentError, match="warm-up steps"):
        debiased_score(torch.ones(3), 0, 1.0)
