from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tacit.data.features import features
from tacit.data.features.scattering import CHANNELS, _filters, normalised_scattering, scattering
from tacit.data.features.silhouettes import figures_on_black
from tacit.errors import ArgumentError


def images(count: int = 3, size: int = 28, channels: int = 1) -> Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_shapes() -> None:
    assert CHANNELS == 81
    (grey,) = scattering(images())
    assert grey.shape == (3, 81, 7, 7)
    (colour,) = scattering(images(size=32, channels=3))
    assert colour.shape == (3, 243, 8, 8)


def test_coefficients_are_those_of_the_definition_up_to_the_thinning() -> None:
    """|x * ψ| * φ and ||x * ψ| * ψ'| * φ at full resolution, every fourth value of them."""
    picture = images(2)
    (found,) = scattering(picture)
    padded = torch.nn.functional.pad(picture, (4,) * 4, mode="reflect")[:, 0]
    wavelets, averages = _filters(36, 36)

    def smooth(values: Tensor) -> Tensor:
        full = torch.fft.ifft2(torch.fft.fft2(values) * averages[0]).real
        return full[:, ::4, ::4][:, 1:-1, 1:-1]

    def modulus(values: Tensor, scale: int, angle: int) -> Tensor:
        return torch.fft.ifft2(torch.fft.fft2(values) * wavelets[scale][angle]).abs()

    torch.testing.assert_close(found[:, 0], smooth(padded))
    torch.testing.assert_close(found[:, 1 + 2], smooth(modulus(padded, 0, 2)))
    coarse = smooth(modulus(padded, 1, 3))
    torch.testing.assert_close(found[:, 1 + 8 + 3], coarse, atol=0.1 * float(coarse.mean()), rtol=0)
    deep = smooth(modulus(modulus(padded, 0, 2), 1, 5))
    torch.testing.assert_close(found[:, 17 + 2 * 8 + 5], deep, atol=0.1 * float(deep.mean()), rtol=0)


def test_wavelets_have_mean_zero_and_answer_their_own_direction() -> None:
    wavelets, averages = _filters(36, 36)
    for bank in wavelets:
        assert float(bank[:, 0, 0].abs().max()) < 1e-6
    assert float(averages[0][0, 0].real) == pytest.approx(1, abs=1e-6)
    at = torch.arange(28.0)
    stripes = (0.75 * math.pi * at).cos().expand(28, 28)[None, None]
    (found,) = scattering(stripes)
    strength = found[0, 1:9, 3, 3]
    assert int(strength.argmax()) == 0
    assert float(strength[0]) > 5 * float(strength[4])


def test_a_vector_depends_on_its_own_image_and_has_unit_length() -> None:
    pictures = images(20)
    together = torch.cat(list(normalised_scattering(pictures)))
    alone = torch.cat([next(normalised_scattering(one[None])) for one in pictures])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(20))


def test_sides_must_be_multiples_of_four() -> None:
    with pytest.raises(ArgumentError, match="multiples of 4"):
        features("scattering").make((1, 30, 30))


def test_figures_on_black_are_grey_only_and_the_same_every_time() -> None:
    images = figures_on_black(60, 28)
    assert images.shape == (60, 1, 28, 28)
    assert torch.equal(images, figures_on_black(60, 28))
    assert float(images.min()) == 0
    assert float(images.max()) == 1
    corners = images[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert float((corners == 0).float().mean()) > 0.9
    assert float(images.flatten(1).amax(1).min()) > 0.1
    with pytest.raises(ArgumentError, match="grey images"):
        features("scattering-on-black").make((3, 32, 32))
