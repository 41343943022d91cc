"""Writing results so that nothing is ever half-written."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tacit.errors import FileError


def write_bytes(path: str | Path, content: bytes, mode: int = 0o644) -> None:
    """Write ``content``: to a temporary file, synced, then renamed; nobody ever sees half of it."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(stream.name, target)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error}.") from error


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON, as `write_bytes` does."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
