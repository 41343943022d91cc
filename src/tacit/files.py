"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.errors import FileError


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in place: a crash leaves old or new, whole and on disk."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            _sync(temporary, os.O_RDWR)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}.") from error


def write_bytes(path: str | Path, content: bytes, mode: int = 0o644) -> None:
    """Write bytes; the file is never readable by more than ``mode`` allows."""

    def write(place: Path) -> None:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)

    write_atomically(path, write)


def write_text(path: str | Path, text: str) -> None:
    """Write text in UTF-8."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise FileError(
            f"{path} cannot be written: its text is not valid Unicode ({error.reason})."
        ) from error
    write_bytes(path, content)


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
