"""The shards of a checkpoint, read without PyTorch: whether they are those it names, and what they hold together.

``torch.distributed.checkpoint`` writes them in safetensors, with the first row of every shard. Rows that follow each
other in their files follow each other in the whole tensor, so its digest needs no tensor in memory.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.errors import FileError
from tacit.files import decode_json, file_digest
from tacit.runs.tensor_file import TYPES, TensorFile, read_tensor_file


def read_checkpoint(path: Path) -> TensorFile:
    """A checkpoint file and, where it names shards, the weights in them; refuse shards that it does not name."""
    found = read_tensor_file(path)
    about = found.numbers.get("shards")
    if about is None:
        return found
    folder = path.parent / _folder(about, path)
    for name, digest in about["digests"].items():
        if file_digest(folder / Path(name).name) != digest:
            raise FileError(f"{folder / name} is damaged: it is not what {path.name} was written with.")
    held = _digests([folder / Path(name).name for name in sorted(about["digests"])])
    tensors = {key: digest for key, digest in found.tensors.items() if not key.startswith("buffers:")}
    tensors |= {
        f"model:{key.removeprefix('buffers:')}": digest
        for key, digest in found.tensors.items()
        if key.startswith("buffers:")
    }
    try:
        tensors |= {f"model:{key}": held[f"model:{name}"] for key, name in about["entries"].items()}
    except KeyError as error:
        raise FileError(f"{folder} does not hold {error}, which {path.name} says it does.") from error
    return TensorFile(found.numbers, tensors)


def _folder(about: Any, path: Path) -> str:
    """The name of the folder beside the checkpoint: never a path that leads elsewhere."""
    name = about.get("folder") if isinstance(about, Mapping) else None
    parts = isinstance(about, Mapping) and all(
        isinstance(about.get(key), Mapping) for key in ("digests", "entries")
    )
    if not isinstance(name, str) or Path(name).name != name or not parts:
        raise FileError(f"{path} does not say which shards belong to it.")
    return name


def _digests(files: list[Path]) -> dict[str, str]:
    """Of every tensor that is divided among the files by rows, the digest that a file of whole tensors has of it."""
    pieces: dict[str, list[tuple[int, Path, str, tuple[int, ...], int, int]]] = {}
    for file in files:
        try:
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                size = int.from_bytes(content[:8], "little")
                header = decode_json(content[8 : 8 + size])
            offsets = decode_json(header.pop("__metadata__")["DCP_SHARDING_INFO"])
            for name, entry in header.items():
                first, last = (8 + size + int(place) for place in entry["data_offsets"])
                row = int(offsets[name]["saved_offsets"][0])
                piece = (row, file, TYPES[entry["dtype"]], tuple(entry["shape"]), first, last)
                pieces.setdefault(name, []).append(piece)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{file} is damaged or no file of shards: {error}.") from error
    found = {}
    for name, parts in pieces.items():
        parts.sort(key=lambda part: part[0])
        rows = sum(part[3][0] for part in parts)
        sha = hashlib.sha256(f" torch.{parts[0][2]} {(rows, *parts[0][3][1:])}".encode())
        for _, file, _, _, first, last in parts:
            with file.open("rb") as opened:
                opened.seek(first)
                left = last - first
                while left and (block := opened.read(min(left, 1 << 20))):
                    sha.update(block)
                    left -= len(block)
        found[name] = sha.hexdigest()
    return found
