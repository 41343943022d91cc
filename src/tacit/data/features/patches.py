"""Random-patch features: thresholded responses to a dictionary of synthetic patches, pooled and whitened.

Coates and Ng's single-layer features, except that patches, whitening, thresholds and principal components are all taken
from synthetic images (``synthetic``): the transform is a fixed function of one image and knows no data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.data.company import same_sized
from tacit.data.features.synthetic import Constants, close_ups, principal_axes

_PATCHES = 200_000
_FLAT = 1e-3
"""Added to the variance of a patch before it is normalised: flat patches stay small."""
_ZCA_RIDGE = 0.01
_WINDOW = 0.155
"""Deviation of the windows over which responses are averaged, as a share of the side."""
_CHUNK = 2
"""Images at once: their responses stay in the processor's cache, which halves the time."""
_WHITENED = 256
"""Images that are whitened at once: the matrix for it is large, and is read once for all of them."""


@dataclass(frozen=True)
class Block:
    """One bank of patches.

    The image is halved ``halvings`` times; ``patches`` patches of ``side`` × ``side`` are compared with every place; a
    response counts where it is among the ``active`` share of the largest; responses are averaged over soft windows, a
    raster of ``grid`` × ``grid``. An ``odd`` block holds by how much the image differs from its mirror image.
    ``components`` principal channels and ``dimensions`` principal features are kept, and ``weight`` is the length of
    the block in the whole vector. All constants come from ``synthetic`` images.
    """

    patches: int = 320
    side: int = 6
    halvings: int = 0
    active: float = 0.1
    grid: int = 4
    components: int = 256
    dimensions: int = 4096
    ridge: float = 4.0
    weight: float = 1.0
    odd: bool = False
    synthetic: int = 6_000

    @property
    def size(self) -> int:
        """How many numbers the block has in the whole vector."""
        return min(self.dimensions, self.components * self.grid**2)


class FittedBlock:
    """A block with its constants, which come from synthetic images."""

    def __init__(self, block: Block, constants: Constants) -> None:
        self._block, self.constants = block, constants

    @classmethod
    def fitted(cls, block: Block, synthetic: Tensor, seed: int) -> FittedBlock:
        """Words, thresholds and whitening by ``synthetic`` images."""
        images = _halved(synthetic, block.halvings)
        made = cls(block, _words(images, block, seed))
        made.constants |= _scales(made._responses(images), block)
        return made

    def __call__(self, images: Tensor) -> Tensor:
        """Features of unit length of images with values in 0 .. 1."""
        responses = self._responses(_halved(images, self._block.halvings))
        return same_sized(self._whitened, responses, _WHITENED)

    def _responses(self, images: Tensor) -> Tensor:
        """Pooled responses, (images, channels, grid * grid)."""
        return torch.cat(
            [same_sized(self._few_responses, few, _CHUNK) for few in torch.split(images, _CHUNK)]
        )

    def _few_responses(self, images: Tensor) -> Tensor:
        block, fixed = self._block, self.constants
        patches = _unfolded(images, block.side)
        places = patches.shape[1]
        white = F.normalize((patches.flatten(0, 1) - fixed["centre"]) @ fixed["whiten"], dim=1)
        answers = (white @ fixed["words"].T).view(len(images), places, -1)
        height = images.shape[2] - block.side + 1
        pool = _pooling(height, places // height, block.grid)
        negative = torch.matmul(pool, (-answers).sub_(fixed["threshold"]).relu_())
        positive = torch.matmul(pool, answers.sub_(fixed["threshold"]).relu_())
        return _symmetric(torch.cat([positive, negative], 2), block).transpose(1, 2)

    def _whitened(self, responses: Tensor) -> Tensor:
        fixed = self.constants
        centred = _unit(_unit((responses - fixed["mean"]) / fixed["deviation"]) - fixed["middle"])
        vectors = torch.einsum("ncp,ck->nkp", centred, fixed["channels"]).flatten(1)
        return F.normalize((vectors - fixed["offset"]) @ fixed["directions"], dim=1)


def _words(images: Tensor, block: Block, seed: int) -> Constants:
    """A dictionary of patches of ``images``, how patches are whitened, and what a response must reach."""
    generator = torch.Generator().manual_seed(seed + 1)
    patches = _some_patches(images, block.side, generator)
    centre = patches.mean(0)
    covariance = torch.cov((patches - centre).T)
    # A mirrored word must answer the mirrored image as the word does the image: whitening may not tell left from right.
    turn = _mirrored_values(images.shape[1], block.side)
    covariance = 0.5 * (covariance + covariance[turn][:, turn])
    centre = 0.5 * (centre + centre[turn])
    spread, axes = torch.linalg.eigh(covariance)
    whiten = axes @ torch.diag((spread + _ZCA_RIDGE * spread.mean()).rsqrt()) @ axes.T
    white = F.normalize((patches - centre) @ whiten, dim=1)
    words = white[torch.randperm(len(white), generator=generator)[: block.patches]]
    words = torch.cat([words, words[:, turn]])
    sample = white[torch.randperm(len(white), generator=generator)[:20_000]]
    threshold = (sample @ words.T).flatten()[::7].quantile(1 - block.active)
    return {"centre": centre, "whiten": whiten, "words": words, "threshold": threshold}


def _scales(responses: Tensor, block: Block) -> Constants:
    """Means, deviations and principal directions of the responses to synthetic images."""
    mean = responses.mean((0, 2))[:, None]
    deviation = responses.std((0, 2))[:, None] + 1e-6
    unit = _unit((responses - mean) / deviation)
    middle = unit.mean(0)
    centred = _unit(unit - middle)
    by_channel = centred.transpose(1, 2).flatten(0, 1)
    channels = principal_axes(by_channel)[1][:, -block.components :].to(centred.dtype)
    vectors = torch.einsum("ncp,ck->nkp", centred, channels).flatten(1)
    offset = vectors.mean(0)
    vectors = vectors - offset
    spread, directions = principal_axes(vectors)
    scale = (spread.clamp(min=0) + block.ridge * spread.mean()).rsqrt()
    directions = (directions * scale)[:, -block.dimensions :].flip(1).to(vectors.dtype)
    return {
        "mean": mean,
        "deviation": deviation,
        "middle": middle,
        "channels": channels,
        "offset": offset,
        "directions": directions,
    }


_FIELDS = 4
TONES = _FIELDS**2
"""Mean tones of a colour."""


class PatchFeatures:
    """Several blocks side by side, the whole of unit length.

    Responses to patches do not see how bright a place is. With a weight of ``tones``, the means of 4 × 4 fields stand
    beside them.
    """

    def __init__(self, blocks: tuple[Block, ...], constants: Constants, tones: float = 0.0) -> None:
        self._tones = tones
        self._weights = [block.weight for block in blocks]
        self._blocks = [
            FittedBlock(block, _of_block(number, constants)) for number, block in enumerate(blocks)
        ]

    def __call__(self, images: Tensor) -> Iterator[Tensor]:
        """The features of ``images`` (values in 0 .. 1), chunk by chunk."""
        for part in torch.split(images, _WHITENED):
            vectors = [w * block(part) for w, block in zip(self._weights, self._blocks, strict=True)]
            if self._tones:
                vectors.append(self._tones * _tones(part))
            yield F.normalize(torch.cat(vectors, 1), dim=1)


def _of_block(number: int, constants: Constants) -> Constants:
    prefix = f"{number}."
    return {name.removeprefix(prefix): value for name, value in constants.items() if name.startswith(prefix)}


def _tones(images: Tensor) -> Tensor:
    """The mean colours of 4 × 4 fields around grey, of at most unit length."""
    means = F.adaptive_avg_pool2d(images, _FIELDS).flatten(1)
    return (2 * means - 1) / math.sqrt(means.shape[1])


def patch_constants(blocks: tuple[Block, ...], shape: tuple[int, int, int], seed: int = 0) -> Constants:
    """The constants of ``blocks`` for images of ``shape``, by synthetic images: ``"0.words"`` are of the first."""
    most = max(block.synthetic for block in blocks)
    images = close_ups(most, max(shape[1:]), shape[0], seed)
    found: Constants = {}
    for number, block in enumerate(blocks):
        made = FittedBlock.fitted(block, images[: block.synthetic], seed)
        found |= {f"{number}.{name}": value.contiguous() for name, value in made.constants.items()}
    return found


def _halved(images: Tensor, times: int) -> Tensor:
    return F.avg_pool2d(images, 2**times) if times else images


def _unfolded(images: Tensor, side: int) -> Tensor:
    """Contrast-normalised patches at every place, (images, places, values)."""
    patches = F.unfold(images, side).transpose(1, 2)
    patches = patches - patches.mean(2, keepdim=True)
    return patches / (patches.square().mean(2, keepdim=True) + _FLAT).sqrt()


def _some_patches(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    each = -(-_PATCHES // len(images))
    found = []
    for part in torch.split(images, _CHUNK):
        patches = _unfolded(part, side)
        places = torch.randint(patches.shape[1], (len(part), each), generator=generator)
        found.append(patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2])).flatten(0, 1))
    return torch.cat(found)


def _pooling(height: int, width: int, grid: int) -> Tensor:
    """The matrix (grid * grid, height * width) that averages over soft, overlapping windows around a raster's points.

    A response that moves by a pixel then changes every average a little, and none much.
    """

    def windows(size: int) -> Tensor:
        points, places = (torch.arange(grid) + 0.5) / grid, (torch.arange(size) + 0.5) / size
        weights = torch.exp(-0.5 * ((places - points[:, None]) / _WINDOW).square())
        return weights / weights.sum(1, keepdim=True)

    return torch.kron(windows(height), windows(width))


def _mirrored_values(channels: int, side: int) -> Tensor:
    """Where each value of a patch stands in the mirrored patch."""
    return torch.arange(channels * side * side).view(channels, side, side).flip(2).flatten()


def _symmetric(pooled: Tensor, block: Block) -> Tensor:
    """Responses averaged over the image and its mirror image, or of an odd block half of what they differ by.

    A word there is the mirrored word here. Channels come in four equal parts: positive responses to words and to
    mirrored words, then negative ones.
    """
    word, turned, against_word, against_turned = pooled.chunk(4, 2)
    plain, mirror = torch.cat([word, against_word], 2), torch.cat([turned, against_turned], 2)
    places = torch.arange(block.grid**2).view(block.grid, block.grid).flip(1).flatten()
    there = mirror[:, places]
    return 0.5 * (plain - there if block.odd else plain + there)


def _unit(values: Tensor) -> Tensor:
    return F.normalize(values.flatten(1), dim=1).view_as(values)
