"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from tacit.errors import FileError


def write_atomically(path: str | Path, write: Callable[[Path], object], *, new: bool = False) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in place: a crash leaves old or new, whole and on disk.

    With ``new`` a file that is there already is refused; of several processes that try at once, one succeeds.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            sync(temporary, os.O_RDWR)
            if new:
                os.link(temporary, path)
                temporary.unlink()
            else:
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}.") from error


def write_bytes(path: str | Path, content: bytes, mode: int = 0o644, *, new: bool = False) -> None:
    """Write bytes; the file is never readable by more than ``mode`` allows."""

    def write(place: Path) -> None:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)

    write_atomically(path, write, new=new)


def write_text(path: str | Path, text: str, *, new: bool = False) -> None:
    """Write text in UTF-8."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise FileError(
            f"{path} cannot be written: its text is not valid Unicode ({error.reason})."
        ) from error
    write_bytes(path, content, new=new)


def write_json(path: str | Path, content: Any, *, new: bool = False) -> None:
    """Write a JSON file."""
    write_text(path, json_text(content), new=new)


def json_text(content: Any) -> str:
    """What ``write_json`` writes."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def without_infinities(content: Any, *, word: Callable[[str, float], Any] = lambda key, value: None) -> Any:
    """``content`` with nothing in it that JSON has no word for.

    ``word`` says what stands for a number that is not finite, given the key it stands under; null by default.
    """

    def plain(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(item, str(name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item, key) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return word(key, value)
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    return plain(content, "")


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.") from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return decode_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def decode_json(content: str | bytes) -> Any:
    """The value that strict JSON in UTF-8 stands for; anything else is a ``ValueError``.

    Stricter than ``json.loads``: NaN and infinities, numbers beyond 64 bits, text with half a surrogate pair, a key
    that comes twice and nesting without end are refused here, so that no reader has to think of them.
    """
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_float, parse_int=_int, object_pairs_hook=_object
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\u" in text:
        _check_text(value)
    return value


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _int(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"the number {digits[:40]} is too large")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a key twice")
    return found


def _check_text(value: Any) -> None:
    # Only an escape can bring half a surrogate pair past UTF-8; written again it would fail much later.
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("it has text that is not Unicode") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)


def decode_toml(text: str) -> dict[str, Any]:
    """The tables that TOML stands for; anything else is a ``ValueError``.

    So are nesting without end and whole numbers beyond 64 bits.
    """
    try:
        found = tomllib.loads(text)
        _check_whole_numbers(found)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def toml_value(value: object) -> str:
    """A number, text, day, path or list as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case date():
            return value.isoformat()
    # JSON strings are TOML basic strings once DEL, which TOML forbids raw, is escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_whole_numbers(value: Any) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("it has a whole number that is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_whole_numbers(item)


def sync(path: Path, flags: int) -> None:
    """Return once the disk has a file, or with ``os.O_RDONLY`` the names in a directory."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
