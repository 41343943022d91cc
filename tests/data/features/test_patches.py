from __future__ import annotations

import pytest
import torch
from tests.data.features.company import assert_tells_of_no_company
from torch import Tensor

from tacit.data.features import dead_leaves, features
from tacit.data.features.patches import Block, PatchFeatures, patch_constants
from tacit.data.features.synthetic import close_ups
from tacit.errors import ArgumentError

FINE = Block(patches=12, components=8, dimensions=60, synthetic=80)
COARSE = Block(patches=6, halvings=1, active=0.2, components=6, dimensions=30, weight=0.5, synthetic=80)


def made(blocks: tuple[Block, ...], shape: tuple[int, int, int]) -> PatchFeatures:
    return PatchFeatures(blocks, patch_constants(blocks, shape))


@pytest.fixture(scope="module")
def small() -> PatchFeatures:
    return made((FINE, COARSE), (3, 32, 32))


def vectors(transform: PatchFeatures, images: Tensor) -> Tensor:
    return torch.cat(list(transform(images)))


def test_synthetic_images_are_the_same_every_time_and_fill_their_range() -> None:
    images = dead_leaves(40, 32, 3)
    assert torch.equal(images, dead_leaves(40, 32, 3))
    assert not torch.equal(images, dead_leaves(40, 32, 3, seed=1))
    assert images.shape == (40, 3, 32, 32)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    assert float(images.std()) > 0.2
    grey = dead_leaves(4, 28, 1)
    assert grey.shape == (4, 1, 28, 28)


def test_close_ups_are_the_same_every_time_smoother_than_leaves_and_lit_differently() -> None:
    images, leaves = close_ups(60, 32, 3), dead_leaves(60, 32, 3)
    assert torch.equal(images, close_ups(60, 32, 3))
    assert images.shape == (60, 3, 32, 32)
    assert 0 <= float(images.min()) < float(images.max()) <= 1

    def roughness(pictures: Tensor) -> Tensor:
        return (pictures[..., 1:] - pictures[..., :-1]).square().mean() / pictures.var()

    assert float(roughness(images)) < 0.7 * float(roughness(leaves))
    assert close_ups(5, 28, 1).shape == (5, 1, 28, 28)


def test_a_picture_moved_by_a_pixel_keeps_most_of_its_vector(small: PatchFeatures) -> None:
    pictures = close_ups(20, 34, 3, seed=5)
    here, there = vectors(small, pictures[..., 1:33, 1:33]), vectors(small, pictures[..., 1:33, 2:34])
    assert float((here * there).sum(1).mean()) > 0.9


def test_neighbouring_pixels_are_alike_and_distant_ones_are_not() -> None:
    images = dead_leaves(200, 32, 1)[:, 0]
    centred = images - images.mean()
    near = float((centred[:, :, 1:] * centred[:, :, :-1]).mean() / centred.square().mean())
    far = float((centred[:, :, 16:] * centred[:, :, :-16]).mean() / centred.square().mean())
    assert near > 0.75
    assert far < 0.5 * near


def test_vectors_have_unit_length_and_depend_on_their_own_image(small: PatchFeatures) -> None:
    pictures = dead_leaves(20, 32, 3, seed=5)
    together = vectors(small, pictures)
    assert together.shape == (20, 90)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(20))
    alone = torch.cat([vectors(small, one[None]) for one in pictures])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [2, 20, 257, 259, 300])
def test_no_bit_of_a_vector_tells_of_other_images(small: PatchFeatures, count: int) -> None:
    assert_tells_of_no_company(small, close_ups(count, 32, 3, seed=5))


def test_only_an_odd_block_tells_an_image_from_its_mirror_image(small: PatchFeatures) -> None:
    pictures = dead_leaves(10, 32, 3, seed=6)
    torch.testing.assert_close(vectors(small, pictures), vectors(small, pictures.flip(3)), atol=1e-4, rtol=0)
    odd = Block(patches=12, components=8, dimensions=60, synthetic=80, odd=True)
    seen = vectors(made((odd,), (3, 32, 32)), pictures)
    turned = vectors(made((odd,), (3, 32, 32)), pictures.flip(3))
    assert float((seen - turned).norm(dim=1).min()) > 0.5


def test_tones_tell_bright_images_from_dark_ones() -> None:
    constants = patch_constants((FINE,), (3, 32, 32))
    blind = PatchFeatures((FINE,), constants)
    seeing = PatchFeatures((FINE,), constants, tones=0.5)
    dark = 0.5 * close_ups(10, 32, 3, seed=6)
    bright = dark + 0.5
    torch.testing.assert_close(vectors(blind, dark), vectors(blind, bright), atol=1e-3, rtol=0)
    seen = vectors(seeing, dark), vectors(seeing, bright)
    assert float((seen[0] - seen[1]).norm(dim=1).min()) > 0.2
    for found in seen:
        torch.testing.assert_close(found.norm(dim=1), torch.ones(10))


def test_vectors_of_synthetic_images_are_spread_over_all_dimensions() -> None:
    """Whitening: no direction holds much more than its share, although raw responses are concentrated."""
    block = Block(patches=12, components=4, dimensions=64, ridge=0.01, synthetic=400)
    white = vectors(made((block,), (1, 28, 28)), close_ups(400, 28, 1))
    share = torch.linalg.eigvalsh(torch.cov(white.T))
    assert float(share[-1] / share.mean()) < 6


def test_it_is_the_same_transform_every_time(small: PatchFeatures) -> None:
    again = made((FINE, COARSE), (3, 32, 32))
    pictures = dead_leaves(3, 32, 3, seed=7)
    assert torch.equal(vectors(small, pictures), vectors(again, pictures))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 28)])
def test_images_that_it_cannot_serve_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError, match="square images of at least 16"):
        features("patches").make(shape)
