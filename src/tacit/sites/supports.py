"""Coordinates that a round asks for: one bit per coordinate in a question, one number per active one in an answer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import ArgumentError
from tacit.sites.messages import MessageError, Shapes
from tacit.support import Block, Support

Bits = Mapping[str, str]
"""Per parameter one bit for each coordinate, the first in the highest bit, in base64."""


def bits_of(support: Support) -> dict[str, str]:
    """A support as text."""
    return {
        name: base64.b64encode(np.packbits(block.mask().numpy().ravel()).tobytes()).decode("ascii")
        for name, block in support.items()
    }


def support_of(bits: Any, shapes: Shapes) -> Support:
    """The support of a question, whoever wrote it: every parameter, exactly its bits, at least one of them set."""
    if not isinstance(bits, Mapping) or set(bits) != set(shapes):
        raise MessageError(
            "A support must say for every parameter of the agreed model which numbers are active."
        )
    blocks = {}
    for name, shape in shapes.items():
        total = int(np.prod(shape, dtype=np.int64))
        try:
            packed = np.frombuffer(base64.b64decode(bits[name], validate=True), np.uint8)
        except (TypeError, ValueError, binascii.Error) as error:
            raise MessageError("A support must hold its bits in base64.") from error
        if len(packed) != -(-total // 8) or np.unpackbits(packed)[total:].any():
            raise MessageError("A support must have one bit for every number of the agreed model.")
        active = np.flatnonzero(np.unpackbits(packed)[:total])
        blocks[name] = Block.coordinates(shape, torch.from_numpy(active)) if shape else Block.all(shape)
    try:
        return Support(blocks)
    except ArgumentError as error:
        raise MessageError(str(error)) from error


def compact_shapes(support: Support) -> dict[str, tuple[int, ...]]:
    """The tensors of a message about a support: the active numbers of every parameter that has some, in order."""
    return {name: (block.size,) for name, block in support.items() if block.size}


def gathered(support: Support, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The active numbers of whole parameters."""
    return {
        name: values[name].flatten()[block.flat()].contiguous()
        for name, block in support.items()
        if block.size
    }


def spread(support: Support, compact: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole parameters: the active numbers from ``compact``, the others from ``base``."""
    found = {}
    for name, value in base.items():
        whole = value.detach().clone().flatten()
        block = support[name]
        if block.size:
            whole[block.flat()] = compact[name].flatten().to(whole.dtype)
        found[name] = whole.reshape(value.shape)
    return found
