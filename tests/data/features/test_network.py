from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.data.features.company import assert_tells_of_no_company
from tools.pretraining.contrast import Encoder, Pretraining, pretrain, views
from torch import Tensor

from tacit.data.features import CACHE_VARIABLE, network, registry
from tacit.data.features.network import NetworkFeatures, NetworkMaps, network_constants, network_weights
from tacit.data.features.synthetic import close_ups
from tacit.errors import ArgumentError, FileError


@pytest.fixture(scope="module")
def small() -> NetworkFeatures:
    return NetworkFeatures(network_constants(close_ups(60, 32, 3), 50))


def vectors(transform: NetworkFeatures, images: Tensor) -> Tensor:
    return torch.cat(list(transform(images)))


def test_vectors_have_unit_length_and_are_those_of_the_mirror_image_too(small: NetworkFeatures) -> None:
    pictures = close_ups(20, 32, 3, seed=5)
    found = vectors(small, pictures)
    assert found.shape == (20, 50)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20))
    torch.testing.assert_close(found, vectors(small, pictures.flip(3)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("count", [2, 16, 17, 257])
def test_no_bit_of_a_vector_tells_of_other_images(small: NetworkFeatures, count: int) -> None:
    assert_tells_of_no_company(small, close_ups(count, 32, 3, seed=5))


def test_grey_images_and_other_sizes_have_vectors_too() -> None:
    maps = NetworkMaps(network_weights())
    grey = close_ups(3, 28, 1)
    torch.testing.assert_close(maps(grey), maps(grey.expand(-1, 3, -1, -1)))
    assert maps(close_ups(2, 64, 3)).shape == (2, maps(grey).shape[1])


def test_damaged_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "WEIGHTS_DIGEST", "0" * 64)
    with pytest.raises(FileError, match="install Tacit again"):
        network_weights()


def test_the_weights_tell_views_of_one_synthetic_image_from_those_of_others() -> None:
    """Weights that have learned nothing find the other view far less often."""
    generator = torch.Generator().manual_seed(3)
    pictures = (255 * close_ups(60, 48, 3, seed=9)).byte()
    seen = torch.cat([views(pictures, generator), views(pictures, generator)])

    def found(maps: Tensor) -> float:
        centred = torch.nn.functional.normalize(maps - maps.mean(0), dim=1)
        alike = centred @ centred.T
        alike.fill_diagonal_(-1.0)
        return float((alike.argmax(1) == torch.arange(120).roll(60)).float().mean())

    learned = found(NetworkMaps(network_weights())(seen))
    torch.manual_seed(0)
    assert learned > 1.5 * found(NetworkMaps(Encoder(32).folded())(seen))


def test_what_is_kept_of_a_network_answers_as_the_network_does() -> None:
    torch.manual_seed(0)
    encoder = Encoder(4)
    images = close_ups(30, 32, 3)
    with torch.no_grad():
        encoder(network.as_input(images))
    encoder.eval()
    answers = network.as_input(images)
    for convolution, norm in zip(encoder.convolutions, encoder.norms, strict=True):
        answers = torch.relu(norm(convolution(answers)))
    kept = list(NetworkMaps(encoder.folded()).layers(images))[-1]
    torch.testing.assert_close(kept, answers.detach(), atol=1e-4, rtol=1e-4)


def test_a_network_learns_and_the_same_seed_gives_the_same_weights() -> None:
    images = (255 * close_ups(24, 48, 3)).byte()
    settings = Pretraining(width=8, steps=30, images_per_step=24, rate=0.1, warm_up=2)
    losses: list[float] = []
    first, again = (
        pretrain(images, settings, lambda step, loss: losses.append(loss)).folded() for _ in range(2)
    )
    assert sum(losses[25:30]) < sum(losses[:5])
    assert losses[:30] == losses[30:]
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_features_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SYNTHETIC", 60)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    pictures = close_ups(9, 16, 1)
    both, scattering = (
        torch.cat(list(registry.features(name).make((1, 16, 16))(pictures)))
        for name in ("network-on-black", "scattering-on-black")
    )
    torch.testing.assert_close(both.norm(dim=1), torch.ones(9))
    torch.testing.assert_close(
        torch.nn.functional.normalize(both[:, -scattering.shape[1] :], dim=1), scattering
    )


def test_images_of_neither_one_colour_nor_three_are_refused() -> None:
    with pytest.raises(ArgumentError, match="of one colour or three, not of 4"):
        registry.features("network").make((4, 32, 32))
