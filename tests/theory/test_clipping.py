from __future__ import annotations

import pytest
import torch

from tacit.errors import ArgumentError
from tacit.theory import clip_rows, clipping_bias, clipping_residual, mask_then_clip_gap


def _gradients(seed: int, n: int = 200, d: int = 15, mean: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(n, 1, generator=generator).double() * 3
    return scale * (torch.randn(n, d, generator=generator).double() + mean)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("clip", [0.1, 1.0, 5.0, 100.0])
def test_bias_is_within_the_residual(seed: int, clip: float) -> None:
    gradients = _gradients(seed)
    bias = clipping_bias(gradients, clip).not_private_value
    assert bias <= clipping_residual(gradients, clip).not_private_value + 1e-12


def test_bias_matches_a_loop_over_examples() -> None:
    gradients = _gradients(0)
    clipped = torch.stack([g if g.norm() <= 1.5 else 1.5 * g / g.norm() for g in gradients])
    expected = float((clipped.mean(0) - gradients.mean(0)).norm())
    assert clipping_bias(gradients, 1.5).not_private_value == pytest.approx(expected)
    torch.testing.assert_close(clip_rows(gradients, 1.5), clipped)


def test_bound_is_attained_by_parallel_gradients() -> None:
    gradients = torch.tensor([[3.0, 4.0]]) * torch.tensor([[0.1], [0.5], [2.0], [7.0]])
    bias = clipping_bias(gradients, 1.0).not_private_value
    assert bias == pytest.approx((1.5 + 9.0 + 34.0) / 4)
    assert bias == pytest.approx(clipping_residual(gradients, 1.0).not_private_value)


def test_bound_is_loose_where_residuals_cancel() -> None:
    gradients = torch.cat([_gradients(1), -_gradients(1)])
    assert clipping_bias(gradients, 0.5).not_private_value < 1e-12
    assert clipping_residual(gradients, 0.5).not_private_value > 1


def test_nothing_clipped_means_no_bias() -> None:
    gradients = _gradients(2)
    gradients[0] = 0
    for measure in (clipping_bias, clipping_residual):
        assert measure(gradients, 1e6).not_private_value == 0


def test_mask_then_clip_differs_from_clip_then_mask_only_when_clipping() -> None:
    gradients, active = _gradients(3), torch.arange(15) < 5
    assert mask_then_clip_gap(gradients, active, 1e6).not_private_value < 1e-24
    masked = torch.stack([g * active * min(1.0, 1.0 / float((g * active).norm())) for g in gradients]).mean(0)
    whole = torch.stack([g * min(1.0, 1.0 / float(g.norm())) for g in gradients]).mean(0) * active
    gap = mask_then_clip_gap(gradients, active, 1.0).not_private_value
    assert gap == pytest.approx(float((masked - whole).square().sum()))
    assert gap > 0.01
    assert masked.norm() > whole.norm()


def test_oracles_say_so() -> None:
    gradients = _gradients(4)
    active = torch.ones(15, dtype=torch.bool)
    for value in (
        clipping_bias(gradients, 1.0),
        clipping_residual(gradients, 1.0),
        mask_then_clip_gap(gradients, active, 1.0),
    ):
        assert "NOT PRIVATE" in str(value)


def test_refuses_a_vector() -> None:
    with pytest.raises(ArgumentError, match="examples × coordinates"):
        clipping_bias(torch.ones(3), 1.0)
