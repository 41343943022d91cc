"""Writing results so that nothing is ever half-written."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tacit.errors import FileError


def write_text(path: str | Path, text: str) -> None:
    """Write ``text``: to a temporary file, synced, then renamed."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(stream.name, 0o644)
        os.replace(stream.name, target)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error}.") from error


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON, as `write_text` does."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
