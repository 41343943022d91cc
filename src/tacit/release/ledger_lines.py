"""The lines of a ledger file: how they are written and how they are verified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.errors import LedgerError
from tacit.files import decode_json
from tacit.release.charge import Charge

FORMAT = "tacit-ledger"
VERSION = 1
START = "0" * 64

_PREFIX = b'{"digest":"'
_REST = len(_PREFIX) + 64 + 2


def check_next(charge: Charge, count: int) -> None:
    """Raise unless ``charge`` is the one that comes after ``count`` others."""
    if charge.index != count:
        raise LedgerError(f"The next charge must have index {count}, got {charge.index}.")


@dataclass(frozen=True)
class LedgerRecord:
    """A ledger file that has been read and found sound.

    ``head`` is the digest of the last complete line, ``counts`` the number of charges up to the line with a
    digest. ``torn`` counts the incomplete lines that crashes left; ``tail`` is one that still stands at the
    end, after ``size`` bytes of complete lines. ``unended`` says that the last of these lacks its newline. ``about`` is
    the digest of the description that the run was started with; ledgers of version 0.1 have none.
    """

    run: str
    plan: str
    charges: tuple[Charge, ...]
    counts: Mapping[str, int]
    head: str
    torn: int
    tail: bytes
    size: int
    unended: bool
    about: str = ""


def read_ledger(path: str | Path) -> LedgerRecord:
    """Read and verify a ledger without locking or changing it. Damage is refused with the line it is in."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be read: {error.strerror}.") from error
    lines = content.split(b"\n")
    tail = lines.pop()
    unended = _is_whole(tail)
    if unended:
        lines.append(tail)
        tail = b""
    elif _is_whole(tail[:-1]):
        raise LedgerError(f"The last line of the ledger {path} is damaged: it does not end with a newline.")
    if not lines:
        raise LedgerError(
            f"The ledger {path} has no complete header, so nothing was ever charged to it: delete it and "
            "start again."
        )
    head, record = _read_line(lines[0], START, 1, path)
    header = _check_header(record, path)
    charges: list[Charge] = []
    counts = {head: 0}
    torn = 0
    for number, line in enumerate(lines[1:], start=2):
        head, record = _read_line(line, head, number, path)
        if "charge" in record:
            charges.append(_read_charge(record["charge"], len(charges), number, path))
        elif "torn" in record:
            torn += 1
        else:
            raise LedgerError(f"Line {number} of the ledger {path} is neither a charge nor a note.")
        counts[head] = len(charges)
    return LedgerRecord(
        header["run"],
        header["plan"],
        tuple(charges),
        counts,
        head,
        torn + bool(tail),
        tail,
        len(content) - len(tail),
        unended,
        header.get("about", ""),
    )


def _is_whole(line: bytes) -> bool:
    digest = hashlib.sha256(line[_REST:]).hexdigest()
    return line.startswith(_PREFIX) and line[len(_PREFIX) : _REST] == digest.encode() + b'",'


def _read_line(line: bytes, previous: str, number: int, path: Path) -> tuple[str, Mapping[str, Any]]:
    if not _is_whole(line):
        raise LedgerError(
            f"Line {number} of the ledger {path} is damaged: its digest does not fit its content."
        )
    try:
        record = decode_json(line)
    except ValueError as error:
        raise LedgerError(f"Line {number} of the ledger {path} is not JSON: {error}.") from error
    if record.get("previous") != previous:
        raise LedgerError(
            f"Line {number} of the ledger {path} does not follow the line before it: a line is missing, was "
            "added or stands in the wrong place."
        )
    return line[len(_PREFIX) : _REST - 2].decode(), record


def _check_header(record: Mapping[str, Any], path: Path) -> Mapping[str, str]:
    header = record.get("header")
    if not isinstance(header, Mapping) or header.get("format") != FORMAT:
        raise LedgerError(f"{path} is not a Tacit ledger.")
    if header.get("version") != VERSION:
        raise LedgerError(
            f"The ledger {path} has version {header.get('version')!r}; this Tacit reads {VERSION}."
        )
    if not all(isinstance(header.get(name), str) for name in ("run", "plan")):
        raise LedgerError(f"The header of the ledger {path} names no run or no plan.")
    if not isinstance(header.get("about", ""), str):
        raise LedgerError(f"The header of the ledger {path} has no digest of its run, but something else.")
    return header


_FIELDS = frozenset(field.name for field in fields(Charge))


def _read_charge(record: Any, index: int, number: int, path: Path) -> Charge:
    try:
        if not isinstance(record, Mapping) or record.keys() != _FIELDS:
            raise ValueError(f"it must have the fields {sorted(_FIELDS)}")
        charge = Charge(**record)
        check_next(charge, index)
    except (LedgerError, TypeError, ValueError) as error:
        raise LedgerError(f"Line {number} of the ledger {path} holds no valid charge: {error}.") from error
    return charge


def ledger_line(content: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    """The line that holds ``content`` after the line with digest ``previous``, and its own digest."""
    record = {**content, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), "previous": previous}
    rest = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()[1:]
    digest = hashlib.sha256(rest).hexdigest()
    return _PREFIX + digest.encode() + b'",' + rest + b"\n", digest
