"""What a checkpoint or model file says of itself, read without PyTorch: its numbers, its tensors, its own digest.

The layout is that of safetensors: the length of a JSON header, the header, the tensors' bytes.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tacit.errors import FileError
from tacit.files import decode_json

Content = TypeVar("Content")

_LONGEST_HEADER = 100_000_000
TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""What safetensors and PyTorch call a type."""


@dataclass(frozen=True)
class TensorFile:
    """A file of ``tacit.tensors`` whose digest fits: its plain numbers, and a digest of each tensor."""

    numbers: Mapping[str, Any]
    tensors: Mapping[str, str]


def read_tensor_file(path: Path) -> TensorFile:
    """Read a checkpoint or model file; refuse one in which a single bit has changed."""
    return _read(path, _parse)


def tensor_digests(path: Path) -> Mapping[str, str]:
    """The digest of each tensor in a file of safetensors that anybody may have written."""
    return _read(path, lambda content: dict(_digests(content, *_header(content))))


def _read(path: Path, parse: Callable[[mmap.mmap], Content]) -> Content:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return parse(content)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is damaged or no file of tensors: {error}.") from error


def _header(content: mmap.mmap) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, and where their bytes begin."""
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= min(_LONGEST_HEADER, len(content) - 8):
        raise ValueError("it has no header")
    header = decode_json(content[8 : 8 + size])
    if not isinstance(header, dict):
        raise ValueError("its header is none")
    return header, 8 + size


def _parse(content: mmap.mmap) -> TensorFile:
    header, start = _header(content)
    about = header.get("__metadata__")
    if not isinstance(about, dict):
        raise ValueError("its header is none of Tacit's")
    text = about["numbers"]
    numbers = decode_json(text)
    if not isinstance(numbers, dict):
        raise ValueError("its numbers are none")
    whole = hashlib.sha256(text.encode())
    tensors = dict(_digests(content, header, start, whole))
    if whole.hexdigest() != about["digest"]:
        raise ValueError("its digest does not fit its content")
    return TensorFile(numbers, tensors)


def _digests(
    content: mmap.mmap, header: Mapping[str, Any], start: int, whole: hashlib._Hash | None = None
) -> Iterator[tuple[str, str]]:
    """The digest of each tensor by its name, in order; ``whole`` is extended by all of them, names included."""
    with memoryview(content) as view:
        for name in sorted(header.keys() - {"__metadata__"}):
            kind, shape, first, last = _entry(header[name], len(content) - start)
            label = f"{name} torch.{kind} {shape}".encode()
            with view[start + first : start + last] as part:
                if whole is not None:
                    whole.update(label)
                    whole.update(part)
                one = hashlib.sha256(label[len(name.encode()) :])
                one.update(part)
            yield name, one.hexdigest()


def _entry(entry: Any, room: int) -> tuple[str, tuple[int, ...], int, int]:
    kind, shape, (first, last) = TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int for number in (*shape, first, last)) or not 0 <= first <= last <= room:
        raise ValueError("a tensor lies outside of it")
    return kind, shape, first, last
