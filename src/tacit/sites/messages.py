"""Questions and replies as bytes: one safetensors file each, with one line of JSON beside its tensors.

Whoever writes them is not trusted. A reader is told which tensors may come, in which shapes; everything else is
refused before a single number is used: other names, shapes and types, gaps and overlaps, headers that are too long,
JSON that is not strict. Nothing in such a message can run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from tacit.errors import TacitError
from tacit.files import decode_json

PROTOCOL = 1
LONGEST_HEADER = 1 << 20
_LENGTH = 8
_REASON = 300

Shapes = Mapping[str, tuple[int, ...]]
Kind = Literal["F32", "I64"]
_BYTES = {"F32": 4, "I64": 8}


class MessageError(TacitError):
    """A message is not what the protocol allows."""


class RefusalError(TacitError):
    """A site declines to answer; the reason holds nothing private and may be sent."""


def write_message(content: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """A message as bytes."""
    text = json.dumps({"protocol": PROTOCOL, **content}, allow_nan=False, sort_keys=True)
    return bytes(save(dict(tensors or {}), {"message": text}))


def read_message(
    payload: bytes, shapes: Shapes | Callable[[dict[str, Any]], Shapes], kind: Kind = "F32"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The line and the tensors of a message: none at all, or of one ``kind`` exactly those of ``shapes``.

    ``F32`` are numbers in single precision, ``I64`` whole numbers modulo 2⁶⁴. Where ``shapes`` depend on the line, they
    are a function of it.
    """
    if len(payload) < _LENGTH:
        raise MessageError("A message must have a header.")
    size = int.from_bytes(payload[:_LENGTH], "little")
    if not 0 < size <= min(LONGEST_HEADER, len(payload) - _LENGTH):
        raise MessageError("The header of a message is too long, or does not end.")
    try:
        header = decode_json(payload[_LENGTH : _LENGTH + size])
        content = decode_json(header.pop("__metadata__")["message"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError("A message must hold one line of strict JSON.") from error
    if not isinstance(content, dict) or content.pop("protocol", None) != PROTOCOL:
        raise MessageError(f"A message must follow protocol {PROTOCOL}.")
    if callable(shapes):
        shapes = shapes(content)
    return content, _tensors(header, payload[_LENGTH + size :], shapes, kind)


def longest(shapes: Shapes) -> int:
    """Bytes of the longest message with such tensors that is read at all."""
    numbers = sum(int(np.prod(shape)) for shape in shapes.values())
    return 4 * numbers + numbers // 4 + sum(2 * len(name) + 256 for name in shapes) + (1 << 16)


def weights_digest(
    weights: Mapping[str, Tensor],
    bits: Mapping[str, str] | None = None,
    among: Sequence[str] | None = None,
) -> str:
    """SHA-256 of weights, of the bits of the support and of the sites of the sum, where there are any.

    A reply names by it what it was asked for.
    """
    sha = hashlib.sha256(b"" if bits is None else json.dumps(dict(bits), sort_keys=True).encode())
    if among is not None:
        sha.update(json.dumps({"among": list(among)}).encode())
    for name in sorted(weights):
        value = weights[name].detach().contiguous()
        sha.update(f"{name} {tuple(value.shape)}".encode())
        sha.update(value.numpy().tobytes())
    return sha.hexdigest()


def refusal(reason: str) -> bytes:
    """The reply of a site that does not answer."""
    return write_message({"kind": "refusal", "reason": reason[:_REASON]})


def _tensors(header: dict[str, Any], body: bytes, shapes: Shapes, kind: Kind) -> dict[str, Tensor]:
    if header and set(header) != set(shapes):
        raise MessageError("The tensors of a message are not those of the agreed model.")
    places: dict[str, tuple[int, int]] = {}
    for name, entry in header.items():
        size = _BYTES[kind] * int(np.prod(shapes[name], dtype=np.int64))
        if (
            not isinstance(entry, dict)
            or set(entry) != {"dtype", "shape", "data_offsets"}
            or entry["dtype"] != kind
            or entry["shape"] != list(shapes[name])
            or not all(type(length) is int for length in entry["shape"])
        ):
            raise MessageError("A tensor of a message has another shape or type than the agreed model.")
        offsets = entry["data_offsets"]
        if (
            not isinstance(offsets, list)
            or [type(offset) for offset in offsets] != [int, int]
            or offsets[1] - offsets[0] != size
        ):
            raise MessageError("A tensor of a message lies outside of it.")
        places[name] = (offsets[0], offsets[1])
    end = 0
    for first, last in sorted(places.values()):
        if first != end:
            raise MessageError("The tensors of a message overlap, or leave gaps.")
        end = last
    if end != len(body):
        raise MessageError("A message must end with its tensors.")
    return {
        name: torch.from_numpy(
            np.frombuffer(body[first:last], "<f4" if kind == "F32" else "<i8").copy()
        ).reshape(shapes[name])
        for name, (first, last) in places.items()
    }
