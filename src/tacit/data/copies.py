"""Files that are one file: links to each other, or copies byte by byte.

A row that is stored twice is two rows to whoever samples them, and one that is both trained and measured on is measured
without protection.
"""

from __future__ import annotations

import filecmp
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tacit.errors import FileError

_ENDS = 1 << 16
"""Bytes at each end of a file that are compared before all of it is."""


def refuse_copies(files: Sequence[str | Path]) -> None:
    """Refuse a list that names a file twice; only files of one size with the same ends are read."""
    alike: dict[tuple[int, bytes], list[Path]] = {}
    try:
        sizes = [Path(file).stat().st_size for file in files]
        times = Counter(sizes)
        for file, size in zip(map(Path, files), sizes, strict=True):
            ends = b"" if times[size] == 1 else _ends(file, size)
            others = alike.setdefault((size, ends), [])
            for other in others:
                if other.samefile(file) or filecmp.cmp(other, file, shallow=False):
                    raise FileError(
                        f"{other} and {file} are one file, or copies: its rows would count twice, or be measured on "
                        "without protection; keep one of them."
                    )
            others.append(file)
    except OSError as error:
        raise FileError(f"{error.filename} cannot be read: {error.strerror}.") from error


def _ends(file: Path, size: int) -> bytes:
    with file.open("rb") as content:
        first = content.read(_ENDS)
        content.seek(max(0, size - _ENDS))
        return hashlib.sha256(first + content.read(_ENDS)).digest()
