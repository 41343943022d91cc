"""Whether data is still the same: a digest of its content under a key that stays with whoever holds the data.

A plain digest in a run directory would let somebody who knows all rows but one try out the last one. Under a key that
the directory does not hold, the digest says nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from tacit.data.row_groups import parquet_files
from tacit.data.stored_images import MANY, files_below
from tacit.errors import FileError, TacitError
from tacit.files import write_bytes

BUDGETS_VARIABLE = "TACIT_BUDGETS"
_KEY_FILE = ".key"
_KEY_BYTES = 32
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Fingerprint:
    """A keyed digest, and the name of its key, which says nothing about the key itself."""

    digest: str
    key: str


def budgets_dir() -> Path:
    """Where budgets and the key lie: the directory named by TACIT_BUDGETS, else one among the user's data."""
    named = os.environ.get(BUDGETS_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tacit" / "budgets"


def fingerprint(source: Path) -> Fingerprint | None:
    """The fingerprint of a file or folder; nothing where there is neither, or no place for a key.

    Of a folder of Parquet files, which may take hours to read, it is that of names, sizes and footers: a value that was
    changed in place, with neither a size nor a range moved, is not noticed. Of a folder of more than 50,000 other files
    it is that of their names.
    """
    try:
        key = _key()
    except (TacitError, OSError):
        return None
    name = hashlib.sha256(b"tacit key name\n" + key).hexdigest()[:16]
    try:
        if source.is_file():
            digest = hmac.new(key, b"file\n", hashlib.sha256)
            _add(digest, source)
        elif source.is_dir():
            stored = parquet_files(source)
            files = stored or sorted(source / path for path in files_below(source))
            if not stored and len(files) > MANY:
                digest = hmac.new(key, b"names\n", hashlib.sha256)
                digest.update(
                    "\0".join(str(file.relative_to(source)) for file in files).encode(
                        "utf-8", "surrogateescape"
                    )
                )
                return Fingerprint(digest.hexdigest(), name)
            digest = hmac.new(key, b"stored\n" if stored else b"folder\n", hashlib.sha256)
            for file in files:
                place = str(file.relative_to(source)).encode("utf-8", "surrogateescape")
                digest.update(f"\n{len(place)} {file.stat().st_size}\n".encode() + place)
                _add(digest, file, _footer_bytes(file) if stored else None)
        else:
            return None
    except OSError as error:
        raise FileError(f"{error.filename or source} cannot be read: {error.strerror}.") from error
    return Fingerprint(digest.hexdigest(), name)


def _footer_bytes(file: Path) -> int:
    """How many bytes at its end say what is where in a Parquet file, and often the range of every column."""
    with file.open("rb") as content:
        size = content.seek(0, os.SEEK_END)
        content.seek(max(0, size - 8))
        return min(size, 8 + int.from_bytes(content.read(4), "little"))


def _add(digest: hmac.HMAC, file: Path, last: int | None = None) -> None:
    """Add the content of a file, or only its last bytes."""
    with file.open("rb") as content:
        if last is not None:
            content.seek(-last, os.SEEK_END)
        while chunk := content.read(_CHUNK):
            digest.update(chunk)


def _key() -> bytes:
    """The key, made on first use and readable by its owner only."""
    path = budgets_dir() / _KEY_FILE
    if not path.is_file():
        try:
            write_bytes(path, secrets.token_bytes(_KEY_BYTES), 0o600, new=True)
        except FileError:
            if not path.is_file():  # another process was not faster: there is no place for it
                raise
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise FileError(f"{path} is no key of Tacit; delete it, and a new one is made.")
    return key
