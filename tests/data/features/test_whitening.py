from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tacit.data.features.patches import Block, patch_constants
from tacit.data.features.synthetic import Constants, Whitening


def stretched(count: int, inputs: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -1.5, inputs)
    return 3 + torch.randn(count, inputs, generator=generator) * scales


@pytest.mark.parametrize("count", [60, 400])
def test_both_ways_to_the_principal_directions_agree_with_the_definition(count: int) -> None:
    vectors = stretched(count, 100)
    centred = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=1)
    spread, axes = torch.linalg.eigh(centred.T @ centred / count)
    scaled = axes * (spread.clamp(min=0) + 4 * spread.mean()).rsqrt()
    expected = torch.nn.functional.normalize(centred @ scaled[:, -20:].flip(1), dim=1)
    found = Whitening.fitted(vectors, 20)(vectors)
    torch.testing.assert_close(found.abs(), expected.abs(), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(count))


def test_a_small_ridge_makes_directions_equal_and_a_large_one_leaves_them() -> None:
    vectors = stretched(2_000, 20)

    def ratio(ridge: float) -> float:
        spread = torch.linalg.eigvalsh(torch.cov(Whitening.fitted(vectors, 20, ridge)(vectors).T))
        return float(spread[-1] / spread[0])

    assert ratio(1e-4) < 2 < 20 < ratio(1e4)


def test_directions_that_synthetic_images_do_not_have_are_left_out() -> None:
    flat = torch.cat([stretched(200, 10), torch.ones(200, 5)], 1)
    found = Whitening.fitted(flat, 15)(flat)
    assert found.shape == (200, 10)
    assert bool(found.isfinite().all())


def test_a_vector_is_whitened_alone() -> None:
    whitening = Whitening.fitted(stretched(60, 100), 20)
    others = 2 * stretched(10, 100) + 1
    alone = torch.cat([whitening(one[None]) for one in others])
    torch.testing.assert_close(whitening(others), alone)


def test_constants_do_not_depend_on_the_signs_that_a_library_gives_eigenvectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = Block(patches=8, components=6, dimensions=20, grid=2, synthetic=40)

    def found() -> list[Constants]:
        torch.manual_seed(0)
        wide, tall = torch.randn(30, 50), torch.randn(60, 20)
        whitened = [Whitening.fitted(vectors, 12).constants for vectors in (wide, tall)]
        return [*whitened, patch_constants((block,), (1, 16, 16))]

    plain, eigh = found(), torch.linalg.eigh

    def turned(matrix: Tensor) -> tuple[Tensor, Tensor]:
        spread, axes = eigh(matrix)
        return spread, axes * (1 - 2 * (torch.arange(axes.shape[1]) % 2))

    monkeypatch.setattr(torch.linalg, "eigh", turned)
    for one, other in zip(plain, found(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
