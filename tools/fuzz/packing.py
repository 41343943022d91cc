"""From a record to a file that has the right outside: mutations then reach what lies behind digests and headers."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from tacit.release.ledger_file import START
from tacit.tensors import tensors_digest

_SIZES = {"I64": 8, "F32": 4, "U8": 1}


def as_json(record: Any) -> bytes:
    """The record as JSON; NaN and infinities as Python writes them."""
    return json.dumps(record).encode()


def as_ledger(lines: Any) -> bytes:
    """A ledger with the given lines, each digest right and each line chained to the one before."""
    previous, written = START, b""
    for line in lines if isinstance(lines, list) else [lines]:
        content = {"previous": previous, **line} if isinstance(line, dict) else {"x": line}
        rest = json.dumps(content).encode()[1:]
        previous = hashlib.sha256(rest).hexdigest()
        written += b'{"digest":"' + previous.encode() + b'",' + rest + b"\n"
    return written


def as_tensors(record: Any) -> bytes:
    """A safetensors file whose header and metadata are the record's, with zeros for all tensors.

    Values of the metadata are themselves JSON, as in Tacit's own files, unless they are text.
    """
    header: dict[str, Any] = {}
    at = 0
    tensors = record.get("tensors") if isinstance(record, dict) else None
    for name, entry in tensors.items() if isinstance(tensors, dict) else ():
        size = _size(entry)
        header[name] = entry if size is None else {**entry, "data_offsets": [at, at + size]}
        at += size or 0
    metadata = record.get("metadata") if isinstance(record, dict) else record
    if isinstance(metadata, dict):
        metadata = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()
        }
    encoded = json.dumps({"__metadata__": metadata, **header}).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(at)


def as_checkpoint(record: Any) -> bytes:
    """A safetensors file of zeros as ``as_tensors`` makes it, with the digest that fits, where one can be computed."""
    plain = as_tensors(record)
    metadata = record.get("metadata") if isinstance(record, dict) else None
    if not isinstance(metadata, dict) or "numbers" not in metadata:
        return plain
    text = metadata["numbers"] if isinstance(metadata["numbers"], str) else json.dumps(metadata["numbers"])
    try:
        digest = tensors_digest(load(plain), text)
    except (SafetensorError, ValueError):
        return plain
    return as_tensors({**record, "metadata": {**metadata, "digest": digest}})


def _size(entry: Any) -> int | None:
    """The bytes that a tensor's entry in the header asks for, if it makes sense and they are not too many."""
    if not isinstance(entry, dict) or not isinstance(shape := entry.get("shape"), list):
        return None
    if not all(isinstance(dimension, int) and 0 <= dimension < 1 << 20 for dimension in shape):
        return None
    size = _SIZES.get(str(entry.get("dtype")), 4) * math.prod(shape)
    return size if size < 1 << 20 else None
