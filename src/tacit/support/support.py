"""The active coordinates of a whole model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tacit.errors import ArgumentError, FileError, ModelError, check_share
from tacit.files import decode_json, write_atomically
from tacit.support.block import Block, Kind
from tacit.support.largest import largest

_FORMAT = "tacit-support-1"
_MOST_HYPERGEOMETRIC = 10**9
"""From so many coordinates on NumPy does not draw how many each parameter has."""


class Support(Mapping[str, Block]):
    """A set of active coordinates over the trainable parameters of a model, by parameter name.

    Immutable, and never ``empty`` but as a part of another. Parameters are those of ``named_parameters()`` that require
    gradients, each tied parameter once, under its first name. What is not active is silent: never noised, never
    updated.
    """

    def __init__(self, blocks: Mapping[str, Block], *, empty: bool = False) -> None:
        if not blocks:
            raise ModelError("The model has no trainable parameters; there is nothing to train.")
        self._blocks = dict(blocks)
        self._digest: str | None = None
        self._plain: Support | None = None
        if self.size == 0 and not empty:
            raise ArgumentError("The support is empty (k = 0); at least one coordinate must be active.")

    # Construction -----------------------------------------------------------------------------------------------

    @classmethod
    def all(cls, model: nn.Module) -> Support:
        """Every coordinate of every trainable parameter."""
        return cls({name: Block.all(p.shape) for name, p in trainable_parameters(model).items()})

    @classmethod
    def matching(cls, model: nn.Module, patterns: Sequence[str]) -> Support:
        """All coordinates of the parameters whose name matches one of the shell-style patterns, and no others."""
        parameters = trainable_parameters(model)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in parameters):
                raise ArgumentError(
                    f"No trainable parameter matches the pattern {pattern!r}; the model's parameters are "
                    f"{_listing(list(parameters))}."
                )
        return cls(
            {
                name: Block.all(p.shape)
                if any(fnmatchcase(name, q) for q in patterns)
                else Block.silent(p.shape)
                for name, p in parameters.items()
            }
        )

    @classmethod
    def random(
        cls, model: nn.Module, *, ratio: float | None = None, size: int | None = None, seed: int
    ) -> Support:
        """``size`` (or ⌊``ratio`` · d⌋) coordinates, uniformly among all subsets of that size."""
        shapes = {name: tuple(p.shape) for name, p in trainable_parameters(model).items()}
        totals = {name: math.prod(shape) for name, shape in shapes.items()}
        size = _resolve_size(sum(totals.values()), ratio, size)
        rng = np.random.default_rng(seed)
        if sum(totals.values()) >= _MOST_HYPERGEOMETRIC:
            return cls(_divided(shapes, rng.choice(sum(totals.values()), size, replace=False, shuffle=False)))
        counts = rng.multivariate_hypergeometric(list(totals.values()), size, method="marginals")
        blocks = {}
        for (name, shape), count in zip(shapes.items(), counts, strict=True):
            flat = rng.choice(totals[name], int(count), replace=False, shuffle=False)
            blocks[name] = Block.coordinates(shape, torch.from_numpy(np.sort(flat)))
        return cls(blocks)

    @classmethod
    def random_rows(cls, model: nn.Module, *, ratio: float, seed: int) -> Support:
        """In every parameter, a random share ``ratio`` of the rows (at least one)."""
        check_share("ratio", ratio)
        rng = np.random.default_rng(seed)
        blocks = {}
        for name, p in trainable_parameters(model).items():
            if p.dim() == 0:
                blocks[name] = Block.all(p.shape)
                continue
            count = max(1, round(ratio * p.shape[0]))
            rows = rng.choice(p.shape[0], count, replace=False, shuffle=False)
            blocks[name] = Block.rows(p.shape, torch.from_numpy(np.sort(rows)))
        return cls(blocks)

    @classmethod
    def top_k(
        cls,
        scores: Mapping[str, Tensor],
        *,
        ratio: float | None = None,
        size: int | None = None,
        per_layer: bool = False,
    ) -> Support:
        """The coordinates with the highest scores: ``size``, or ⌊``ratio`` · d⌋, of all or of each parameter.

        Among equal scores the coordinates that come first win, so the choice depends on the scores alone.
        """
        if per_layer:
            if ratio is None:
                raise ArgumentError("Choosing per layer needs ratio=, the share of each parameter to keep.")
            check_share("ratio", ratio)
            chosen = {
                name: largest({name: score}, int(ratio * score.numel()))[name]
                for name, score in scores.items()
            }
        else:
            total = sum(score.numel() for score in scores.values())
            chosen = largest(scores, _resolve_size(total, ratio, size))
        return cls({name: Block.coordinates(score.shape, chosen[name]) for name, score in scores.items()})

    @classmethod
    def of_rows(cls, model: nn.Module, rows: Mapping[str, Tensor]) -> Support:
        """The given rows of the named parameters; every other parameter is silent."""
        return cls(_from_index(model, rows, Block.rows))

    @classmethod
    def of_coordinates(cls, model: nn.Module, coordinates: Mapping[str, Tensor]) -> Support:
        """The given flat positions in the named parameters; every other parameter is silent."""
        return cls(_from_index(model, coordinates, Block.coordinates))

    def __or__(self, other: Support) -> Support:
        """The coordinates active in either support of the same model."""
        self._require_same_shapes({name: block.shape for name, block in other.items()})
        return Support({name: block.union(other[name]) for name, block in self.items()})

    def unweighted(self) -> Support:
        """The same coordinates, each with its full weight."""
        if self._plain is None:
            weighted = any(block.weights is not None for block in self._blocks.values())
            blocks = {n: b if b.weights is None else Block.all(b.shape) for n, b in self._blocks.items()}
            self._plain = Support(blocks, empty=True) if weighted else self
        return self._plain

    def part(self, rows: Mapping[str, Sequence[int]], place: int) -> Support:
        """The support of one part of a model whose parameters are cut at these rows; it may be empty."""
        return Support({name: block.part(rows[name], place) for name, block in self.items()}, empty=True)

    # Reading ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Block:
        return self._blocks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Support) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"Support({self.size:,} of {self.dimension:,} coordinates, active ratio {self.ratio:.4g})"

    @property
    def size(self) -> int:
        """k, the number of active coordinates."""
        return sum(block.size for block in self._blocks.values())

    @property
    def dimension(self) -> int:
        """d, the number of coordinates, active or silent."""
        return sum(block.total for block in self._blocks.values())

    @property
    def ratio(self) -> float:
        """The active ratio k/d."""
        return self.size / self.dimension

    def counts(self) -> dict[str, tuple[int, int]]:
        """Active and total coordinates of each parameter."""
        return {name: (block.size, block.total) for name, block in self.items()}

    def digest(self) -> str:
        """SHA-256 of names, shapes, active coordinates and weights; equal exactly for equal supports."""
        if self._digest is None:
            sha = hashlib.sha256(_FORMAT.encode())
            for name, block in self.items():
                sha.update(json.dumps([name, block.shape, block.kind.value]).encode())
                sha.update(block.index.numpy().tobytes())
                if block.weights is not None:
                    sha.update(json.dumps(["weights", block.weights.axis]).encode())
                    sha.update(block.weights.values.numpy().tobytes())
            self._digest = sha.hexdigest()
        return self._digest

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model whose trainable parameters are not those of this support."""
        self._require_same_shapes({name: tuple(p.shape) for name, p in trainable_parameters(model).items()})

    def _require_same_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        mine = {name: block.shape for name, block in self.items()}
        if mine == dict(shapes):
            return
        for name in [*mine, *shapes]:
            if mine.get(name) != shapes.get(name):
                raise ArgumentError(
                    f"The support belongs to another model: parameter {name!r} has shape {mine.get(name, 'none')} in "
                    f"the support and {shapes.get(name, 'none')} in the model."
                )

    # Files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the support to a safetensors file."""
        layout: dict[str, dict[str, object]] = {
            name: {"shape": block.shape, "kind": block.kind.value} for name, block in self.items()
        }
        index = {name: block.index for name, block in self.items()}
        for name, block in self.items():
            if block.weights is not None:
                layout[name]["axis"] = block.weights.axis
                index[name] = block.weights.values
        metadata = {"format": _FORMAT, "layout": json.dumps(layout), "digest": self.digest()}
        write_atomically(path, lambda place: save_file(index, str(place), metadata))

    @classmethod
    def load(cls, path: str | Path) -> Support:
        """Read a support written by ``save``; a damaged file is refused."""
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise FileError(f"{path} is not a support file of this version of Tacit.")
                blocks = {}
                for name, entry in decode_json(metadata["layout"]).items():
                    shape, values = tuple(entry["shape"]), file.get_tensor(name)
                    blocks[name] = (
                        Block.weighted(shape, values, entry["axis"])
                        if "axis" in entry
                        else Block.restore(shape, Kind(entry["kind"]), values)
                    )
                support = cls(blocks)
        except FileError:
            raise
        except (
            OSError,
            SafetensorError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            RuntimeError,
            ModelError,
        ) as error:
            raise FileError(f"{path} cannot be read as a support: {error}.") from error
        if support.digest() != metadata.get("digest"):
            raise FileError(f"{path} is damaged: its digest does not fit its content.")
        return support


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, each tied parameter once under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _divided(shapes: Mapping[str, tuple[int, ...]], positions: np.ndarray) -> dict[str, Block]:
    """Positions in all parameters one after the other, by parameter."""
    positions, start, blocks = np.sort(positions), 0, {}
    for name, shape in shapes.items():
        low, high = np.searchsorted(positions, [start, start + math.prod(shape)])
        blocks[name] = Block.coordinates(shape, torch.from_numpy(positions[low:high] - start))
        start += math.prod(shape)
    return blocks


def _from_index(
    model: nn.Module, index: Mapping[str, Tensor], block: Callable[[Sequence[int], Tensor], Block]
) -> dict[str, Block]:
    parameters = trainable_parameters(model)
    for name in index:
        if name not in parameters:
            raise ArgumentError(
                f"{name!r} is not a trainable parameter; the model's parameters are {_listing(list(parameters))}."
            )
    return {
        name: block(p.shape, index[name]) if name in index else Block.silent(p.shape)
        for name, p in parameters.items()
    }


def _resolve_size(total: int, ratio: float | None, size: int | None) -> int:
    if (ratio is None) == (size is None):
        raise ArgumentError("Give either ratio= or size=, the number of active coordinates, and not both.")
    if ratio is not None:
        size = int(check_share("ratio", ratio) * total)
    assert size is not None
    if not 1 <= size <= total:
        raise ArgumentError(
            f"The support must have between 1 and d = {total} active coordinates, got k = {size}."
        )
    return size


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown}, … ({len(names)} in all)"
