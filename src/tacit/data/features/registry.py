"""Fixed features of images by name, computed once and cached.

Vectors that were computed once are kept on disk, under a name made from the images and the transform.

They are as private as the images they were computed from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from tacit.data.features.kept import cache_dir, keep, read_kept
from tacit.data.features.network import WEIGHTS_DIGEST, NetworkFeatures, network_constants
from tacit.data.features.patches import TONES, Block, PatchFeatures, patch_constants
from tacit.data.features.scattering import CHANNELS, WhitenedScattering, normalised_maps, scattering_constants
from tacit.data.features.silhouettes import figures_on_black, upright
from tacit.data.features.synthetic import Constants, close_ups, dead_leaves
from tacit.data.task import Pairs, Task
from tacit.errors import ArgumentError, FileError
from tacit.waiting import awaited

Shape = tuple[int, int, int]
Transform = Callable[[Tensor], Iterator[Tensor]]
"""From images (n, channels, height, width) with values in 0 .. 1 to vectors of unit length, chunk by chunk."""

_FINE = Block()
_COARSE = Block(patches=320, halvings=1, active=0.2, weight=0.6)
_SIDED = Block(patches=320, halvings=1, active=0.2, components=128, dimensions=2_048, weight=0.4, odd=True)
_TONES = 0.5
_NETWORK_BESIDE_PATCHES, _NETWORK_IN_FULL, _SCATTERING_BESIDE_NETWORK = 0.7, 0.4, 0.5
_CLOSE_UPS = 6_000
_SYNTHETIC = 4_500
_DIMENSIONS = 2_048
_AT_ONCE = 512
"""Images between two signs of progress."""


@dataclass(frozen=True)
class Features:
    """A fixed transform: a function of one image that no data has influenced.

    ``version`` counts changes of what it computes, so that vectors kept on disk are not taken for another's. ``size``
    is the shape of a vector, as far as it is known before anything is computed: there are fewer directions
    where synthetic images have no more.
    """

    about: str
    version: int
    make: Callable[[Shape], Transform]
    size: Callable[[Shape], tuple[int, ...]] | None = None


def _scattering_size(shape: Shape) -> tuple[int, ...]:
    return (min(_DIMENSIONS, math.prod(_maps_size(shape))),)


def _maps_size(shape: Shape) -> tuple[int, ...]:
    channels, height, width = _multiples_of_four(shape)
    return (CHANNELS * channels, height // 4, width // 4)


def _figures_size(shape: Shape) -> tuple[int, ...]:
    return _scattering_size(_of_figures(shape))


def _scattering(shape: Shape) -> Transform:
    channels, height, width = _multiples_of_four(shape)

    def constants() -> Constants:
        leaves = dead_leaves(_SYNTHETIC, max(height, width), channels)
        return scattering_constants(leaves[..., :height, :width], _DIMENSIONS)

    return WhitenedScattering(_kept("scattering", shape, (_SYNTHETIC, _DIMENSIONS), constants))


def _scattering_on_black(shape: Shape) -> Transform:
    return WhitenedScattering(
        _kept(
            "scattering-on-black",
            shape,
            (_SYNTHETIC, _DIMENSIONS),
            lambda: scattering_constants(_figures(shape), _DIMENSIONS),
        )
    )


def _scattering_upright(shape: Shape) -> Transform:
    constants = _kept(
        "scattering-upright",
        shape,
        (_SYNTHETIC, _DIMENSIONS),
        lambda: scattering_constants(_figures(shape), _DIMENSIONS, upright),
    )
    return WhitenedScattering(constants, upright)


def _of_figures(shape: Shape) -> Shape:
    if _multiples_of_four(shape)[0] != 1:
        raise ArgumentError(
            f"Figures on a black ground are grey images, not of {shape[0]} channels; use scattering."
        )
    return shape


def _figures(shape: Shape) -> Tensor:
    _, height, width = _of_figures(shape)
    return figures_on_black(_SYNTHETIC, max(height, width))[..., :height, :width]


def _scattering_maps(shape: Shape) -> Transform:
    _multiples_of_four(shape)
    return normalised_maps


def _multiples_of_four(shape: Shape) -> Shape:
    if shape[1] % 4 or shape[2] % 4:
        raise ArgumentError(
            f"Scattering needs images whose sides are multiples of 4, not {shape[1]} x {shape[2]}; resize them."
        )
    return shape


def _patches(shape: Shape) -> Transform:
    return _of_blocks("patches", (_FINE, _COARSE), shape)


def _patches_full(shape: Shape) -> Transform:
    patches = _of_blocks("patches-full", (_FINE, _COARSE, _SIDED), shape, _TONES)
    return _beside(patches, _network(shape), _NETWORK_IN_FULL)


def _patches_size(shape: Shape) -> tuple[int, ...]:
    _square(shape)
    return (sum(block.size for block in (_FINE, _COARSE)),)


def _patches_full_size(shape: Shape) -> tuple[int, ...]:
    (network,) = _network_size(_square(shape))
    return (sum(block.size for block in (_FINE, _COARSE, _SIDED)) + TONES * shape[0] + network,)


def _of_blocks(name: str, blocks: tuple[Block, ...], shape: Shape, tones: float = 0.0) -> Transform:
    _square(shape)
    constants = _kept(name, shape, blocks, lambda: patch_constants(blocks, shape))
    return PatchFeatures(blocks, constants, tones)


def _square(shape: Shape) -> Shape:
    if shape[1] != shape[2] or shape[1] < 16:
        raise ArgumentError(
            f"Patch features need square images of at least 16 x 16 pixels, not {shape[1]} x {shape[2]}."
        )
    return shape


def _network_size(shape: Shape) -> tuple[int, ...]:
    _coloured(shape)
    return (_DIMENSIONS,)


def _coloured(shape: Shape) -> Shape:
    if shape[0] not in (1, 3):
        raise ArgumentError(f"The network is for images of one colour or three, not of {shape[0]}.")
    return shape


def _network(shape: Shape) -> Transform:
    channels, height, width = _coloured(shape)

    def close_by() -> Tensor:
        return close_ups(_CLOSE_UPS, max(height, width), channels, seed=3)[..., :height, :width]

    return _answers("network", shape, _CLOSE_UPS, close_by)


def _answers(name: str, shape: Shape, count: int, paint: Callable[[], Tensor]) -> Transform:
    """Answers of the network, whitened by the ``count`` synthetic images that are painted."""
    about = (WEIGHTS_DIGEST, count, _DIMENSIONS)
    return NetworkFeatures(_kept(name, shape, about, lambda: network_constants(paint(), _DIMENSIONS)))


def _patches_network(shape: Shape) -> Transform:
    return _beside(_patches(shape), _network(shape), _NETWORK_BESIDE_PATCHES)


def _patches_network_size(shape: Shape) -> tuple[int, ...]:
    return (_patches_size(shape)[0] + _network_size(shape)[0],)


def _network_on_black_size(shape: Shape) -> tuple[int, ...]:
    return (_network_size(shape)[0] + _figures_size(shape)[0],)


def _network_on_black(shape: Shape) -> Transform:
    answers = _answers("network-on-black", shape, _SYNTHETIC, lambda: _figures(shape))
    return _beside(answers, _scattering_on_black(shape), _SCATTERING_BESIDE_NETWORK)


def _beside(first: Transform, second: Transform, weight: float) -> Transform:
    """Both side by side, the second one shorter by ``weight``, the whole of unit length."""

    def together(images: Tensor) -> Iterator[Tensor]:
        parts = [torch.cat(list(first(images))), weight * torch.cat(list(second(images)))]
        yield F.normalize(torch.cat(parts, 1), dim=1)

    return together


FEATURES: dict[str, Features] = {
    "scattering": Features(
        "Scattering coefficients of order two, two scales, eight angles, whitened by synthetic images.",
        5,
        _scattering,
        _scattering_size,
    ),
    "scattering-on-black": Features(
        "Scattering coefficients, whitened by synthetic strokes and silhouettes on a black ground.",
        3,
        _scattering_on_black,
        _figures_size,
    ),
    "scattering-upright": Features(
        "Scattering coefficients of the figure set upright, whitened by synthetic figures on a black ground.",
        3,
        _scattering_upright,
        _figures_size,
    ),
    "scattering-maps": Features(
        "Scattering coefficients in their places, 81 per colour and block of 4 x 4 pixels, for convolutional networks.",
        3,
        _scattering_maps,
        _maps_size,
    ),
    "patches": Features(
        "Responses to random patches of synthetic images, pooled, whitened; blind to left and right.",
        4,
        _patches,
        _patches_size,
    ),
    "patches-full": Features(
        "Responses to random patches, pooled, whitened; what tells left from right; tones; network, with less weight.",
        3,
        _patches_full,
        _patches_full_size,
    ),
    "network": Features(
        "Answers of a small network that was pretrained on synthetic images, averaged over cells, whitened.",
        2,
        _network,
        _network_size,
    ),
    "patches-network": Features(
        "The features patches, and beside them with less weight those of a network pretrained on synthetic images.",
        2,
        _patches_network,
        _patches_network_size,
    ),
    "network-on-black": Features(
        "Answers of the network and scattering-on-black, both whitened by synthetic figures on a black ground.",
        2,
        _network_on_black,
        _network_on_black_size,
    ),
}


def features(name: str) -> Features:
    """The transform ``name``."""
    if name not in FEATURES:
        raise ArgumentError(f"There are no features {name!r}; there are {', '.join(FEATURES)}.")
    return FEATURES[name]


_SHOWN = 32
"""Fixed images whose vectors tell one transform from another."""
_ALIKE = 1e-3
"""By how much the same transform may differ between machines, which round differently."""


def signature(name: str, shape: Shape) -> tuple[float, ...]:
    """A few numbers that tell what the transform ``name`` computes here from images of ``shape``.

    A weighted sum of the vector of each of some fixed images: another version, other weights, other constants and, in
    all but the weakest directions, even one that has the other sign give other numbers.
    """
    channels, height, width = shape
    image, channel, row, column = (
        torch.arange(size).view(-1, *[1] * after)
        for size, after in ((_SHOWN, 3), (channels, 2), (height, 1), (width, 0))
    )
    # Stripes, in whole numbers: the same to the bit on every machine.
    images = (((image + 1) * row * 5 + (image + 3) * column * 7 + channel * 40) % 256).float() / 255
    with torch.no_grad():
        vectors = torch.cat(list(features(name).make(shape)(images))).flatten(1).double()
    weights = torch.arange(vectors.shape[1], dtype=torch.float64).cos()
    return tuple(round(value, 6) for value in (vectors @ weights).tolist())


def check_signature(name: str, shape: Shape, expected: Sequence[float] | None) -> None:
    """Refuse the transform ``name`` of this machine where it is not the one that gave the ``expected`` signature."""
    if expected is None:
        raise FileError(
            f"An earlier version of Tacit trained this model and did not note what its features {name!r} answer, so "
            "that nobody can tell whether those of this version are the same; use that version, or train again."
        )
    found = signature(name, shape)
    if len(found) != len(expected) or any(
        not abs(one - other) <= _ALIKE for one, other in zip(found, expected, strict=True)
    ):
        raise FileError(
            f"This model was trained on other features {name!r} than this installation computes; use the version of "
            f"Tacit that trained it, delete {cache_dir()} if it was exchanged, or train again."
        )


def _kept(name: str, shape: Shape, settings: object, compute: Callable[[], Constants]) -> Constants:
    """The constants of a transform for images of ``shape`` by its ``settings``: computed once, then read.

    They come from synthetic images and know no data.
    """
    about = f"{FEATURES[name].version} {shape} {settings}"
    digest = hashlib.sha256(about.encode()).hexdigest()[:24]
    path = cache_dir() / f"constants-{name}-{digest}.safetensors"
    if not path.exists():
        size = f"{shape[1]} x {shape[2]}"
        what = f"Preparing the features {name} for images of {size}, once; this takes minutes"
        (found,) = awaited((work() for work in [compute]), None, what)
        keep(path, found)
    return read_kept(path)


class FeatureCache:
    """Computes the vectors of sets of images, or reads those that were kept.

    A file is named by a digest of the images, the transform and its version, so another set or another
    version of the transform never finds it.
    """

    def __init__(self, name: str, directory: Path | None = None) -> None:
        self._name, self._features = name, features(name)
        self._directory = cache_dir() if directory is None else directory
        self._made: dict[Shape, Transform] = {}

    def vectors(self, images: Tensor) -> Tensor:
        """The vectors of images (n, channels, height, width) with values in 0 .. 1, one row per image."""
        path = self._directory / f"{self._name}-{self._digest(images)}.safetensors"
        if not path.exists():
            shape = (images.shape[1], images.shape[2], images.shape[3])
            if shape not in self._made:
                self._made[shape] = self._features.make(shape)
            keep(path, {"rows": computed(self._name, images, self._made[shape])})
        rows = read_kept(path).get("rows")
        if rows is None or len(rows) != len(images) or not rows.is_floating_point():
            raise FileError(f"{path} does not hold a vector for each image; delete it to compute it again.")
        return rows

    def _digest(self, images: Tensor) -> str:
        about = f"{self._name} {self._features.version} {tuple(images.shape)} {images.dtype}"
        digest = hashlib.sha256(about.encode())
        digest.update(images.contiguous().numpy().tobytes())
        return digest.hexdigest()[:24]


def computed(name: str, images: Tensor, transform: Transform) -> Tensor:
    """The vectors of ``images`` by the ``transform`` called ``name``, with signs of progress."""
    parts = torch.split(images, _AT_ONCE)
    with torch.no_grad():
        return torch.cat(
            [
                vectors
                for part in awaited(
                    parts, len(parts), f"Computing the features {name} of {len(images):,} images"
                )
                for vectors in transform(part)
            ]
        )


def on_features(task: Task, name: str, directory: Path | None = None) -> Task:
    """``task`` with the vectors of the fixed transform ``name`` in place of its images.

    A vector depends on its own image alone and has unit length, so who is in the training data changes one
    item as before. Vectors are kept in ``directory`` (``cache_dir()`` unless given).
    """
    low, high = _range_of(task)
    cache = FeatureCache(name, directory)

    def vectors(images: Tensor) -> Tensor:
        return cache.vectors(images if (low, high) == (0.0, 1.0) else (images - low) / (high - low))

    return _with_vectors(task, name, vectors)


def before_features(task: Task, name: str) -> Task | None:
    """``task`` as ``on_features`` would give it, with zeros for vectors, which take neither time nor memory.

    It is enough to plan by. There is none where nobody can say beforehand what the transform gives.
    """
    known = features(name).size
    _range_of(task)
    channels, height, width = task.input_shape
    size = None if known is None else known((channels, height, width))
    if size is None:
        return None
    return _with_vectors(task, name, lambda images: torch.zeros(1, *size).expand(len(images), *size))


def _range_of(task: Task) -> tuple[float, float]:
    if len(task.input_shape) != 3 or task.value_range is None:
        raise ArgumentError(f"Features are for images with a public range of values; {task.name!r} has none.")
    return task.value_range


def _with_vectors(task: Task, name: str, vectors: Callable[[Tensor], Tensor]) -> Task:
    about = features(name).about

    def transformed(part: Pairs) -> TensorDataset:
        if not isinstance(part, TensorDataset):
            raise ArgumentError(f"Features are for images held in memory; {task.name!r} is not.")
        images, *rest = part.tensors
        return TensorDataset(vectors(images), *rest)

    train = transformed(task.train)
    return replace(
        task,
        train=train,
        held_out=None if task.held_out is None else transformed(task.held_out),
        input_shape=tuple(train.tensors[0].shape[1:]),
        norm_bound=1.0,
        value_range=None,
        public_sources=(*task.public_sources, f"Features {name}: {about} No data set went into them."),
    )
