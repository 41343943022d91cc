"""Scratch memory that persists between steps: fresh pages cost more than the arithmetic done in them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.flat: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}


_buffers = _Buffers()


def scratch(purpose: str, shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialised tensor, valid until the next call with the same purpose on this thread.

    Only for tiles of bounded size: the memory is kept.
    """
    key = (purpose, like.dtype, like.device)
    count = math.prod(shape)
    flat = _buffers.flat.get(key)
    if flat is None or flat.numel() < count:
        flat = _buffers.flat[key] = like.new_empty(count)
    return flat[:count].view(*shape)


def forget() -> None:
    """Give the scratch memory of this thread back, as after work in another precision than that of the steps."""
    _buffers.flat.clear()
