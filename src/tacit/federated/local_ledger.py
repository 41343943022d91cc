"""The client's ledger: every answer charged on disk before it is computed.

A note of how far a client's ledger reaches, so that a shorter one is not taken for it.

The note is the digest of the ledger's last line. It is written whole or not at all, after the line was synced.

The ledger of one client: every answer it ever gave, what it cost, and what it said.

Lines are chained and synced like those of `tacit.release`, but a charge is another thing here: a pure ε,
for one round of one training, together with the perturbed answer itself. The answer is public once it is
sent, so a question that comes twice (a server that lost it and started again) is answered with the same
words, at no cost.

Beside the ledger a note (``local_head``) holds the digest of its last line, and a second note may be kept
elsewhere. A ledger that lacks a noted line was cut, deleted or replaced by an older copy: what it spent is not
known any more, so it takes no further charge. The order is line, sync, notes, answer. A crash in between leaves
a ledger that is ahead of its notes, which is harmless.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tacit.errors import NO_FILE_LOCKS, FileError, LedgerError
from tacit.files import decode_json, write_bytes
from tacit.release.ledger_file import START, ledger_line

_ADVICE = (
    "What the client has spent is not known, so it answers nothing more. Bring back the newest ledger and note, with "
    "every answer that was ever given; if they are lost, do not use these records again."
)


@dataclass(frozen=True)
class LocalHead:
    """One place where a note is kept."""

    path: Path

    def write(self, digest: str) -> None:
        """Note the last line of a ledger; return once it is on disk."""
        try:
            if self.path.is_file() and self.path.read_bytes() == f"{digest}\n".encode():
                return
            write_bytes(self.path, f"{digest}\n".encode(), mode=0o600)
        except (FileError, OSError) as error:
            raise LedgerError(f"The note of the ledger cannot be kept: {error}") from error

    def check(self, ledger: Path, digests: Collection[str], *, needed: bool) -> None:
        """Refuse a ledger with lines ``digests`` that lacks the noted one, or that is without a note it needs."""
        try:
            noted = self.path.read_bytes().decode("ascii", errors="replace").strip()
        except FileNotFoundError:
            if needed:
                raise LedgerError(
                    f"{self.path}, the note of how far the ledger {ledger} reaches, is missing. {_ADVICE}"
                ) from None
            return
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read: {error.strerror}.") from error
        if noted not in digests:
            raise LedgerError(
                f"The ledger {ledger} does not reach as far as {self.path} says: it was cut, deleted or replaced. "
                f"{_ADVICE}"
            )


# Ledgers of version 1 have no header and no note; the first charge in a later version adds both.
_HEADER = {"format": "tacit-local-ledger", "version": 2}
_PREFIX = b'{"digest":"'
_REST = len(_PREFIX) + 64 + 2
_LOCK_SECONDS = 20.0
_MOST_STEPS = 2**53


@dataclass(frozen=True)
class LocalCharge:
    """One answer: the training and its plan, the round, the exact ε it cost, and what was said.

    What cannot be read back cannot be made: the writer and the reader of a ledger share these checks.
    """

    training: str
    plan: str
    round: int
    epsilon: float
    coordinate: int
    steps: int

    def __post_init__(self) -> None:
        types = {"str": str, "int": int, "float": float}
        for field in fields(self):
            if type(getattr(self, field.name)) is not types[str(field.type)]:
                raise LedgerError(f"A charge has no valid {field.name}: {getattr(self, field.name)!r}.")
        for name, value, least, most in (
            ("epsilon", self.epsilon, 0.0, 1e9),
            ("round", self.round, 1, 2**53),
            ("coordinate", self.coordinate, -1, 2**53),
            ("steps", self.steps, -_MOST_STEPS, _MOST_STEPS),
        ):
            if not least <= value <= most:
                raise LedgerError(f"A charge has no valid {name}: {value!r}.")


@dataclass(frozen=True)
class _Content:
    """What the complete lines of a ledger file say: ``digests`` by line, ``size`` in bytes."""

    charges: list[LocalCharge]
    digests: list[str]
    has_header: bool
    size: int

    @property
    def head(self) -> str:
        return self.digests[-1] if self.digests else START


class LocalLedger:
    """The ledger file of one client, held by one process at a time; created if it never was there.

    ``witness`` is a second place for the note, on another disk at best: with it, a client whose whole folder
    was deleted or restored from a backup is noticed too.
    """

    def __init__(self, path: str | Path, witness: Path | None = None) -> None:
        self.path = Path(path)
        self._notes = [_beside(self.path)]
        if witness is not None:
            self._notes.append(LocalHead(witness))
        if not self.path.exists():
            self._check_notes(_Content([], [], False, 0))
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"The ledger {self.path} cannot be opened: {error.strerror}.") from error
        try:
            _lock(self._descriptor, self.path)
            content = _read(self.path)
            self._check_notes(content)
            # An incomplete last line was never synced, so nothing was sent for it.
            os.ftruncate(self._descriptor, content.size)
            if content.digests:
                self._note(content.head)
            else:
                _sync_directory(self.path.parent)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._charges = content.charges
        self._digests = set(content.digests)
        self._head = content.head
        self._has_header = content.has_header
        self._open = True

    @property
    def charges(self) -> tuple[LocalCharge, ...]:
        """Every charge so far, in order."""
        return tuple(self._charges)

    @property
    def spent(self) -> float:
        """The ε spent so far, over all trainings: the sum, as answers compose."""
        return math.fsum(charge.epsilon for charge in self._charges)

    @property
    def head(self) -> str:
        """The digest of the last line; it stands for the whole content."""
        return self._head

    def check_reaches(self, head: str, noted_in: Path) -> None:
        """Refuse to go on if the ledger lacks the line with digest ``head``, which a file of the client knows of."""
        if head not in self._digests:
            raise LedgerError(
                f"The ledger {self.path} does not reach as far as {noted_in} says: it was cut, deleted or replaced. "
                f"{_ADVICE}"
            )

    def find(self, training: str, number: int) -> LocalCharge | None:
        """Return the charge for this round of this training, if there is one."""
        for charge in self._charges:
            if (charge.training, charge.round) == (training, number):
                return charge
        return None

    def charge(self, charge: LocalCharge) -> None:
        """Write ``charge`` and return once it is on disk and noted; refuse to charge a round twice."""
        if not self._open:
            raise LedgerError(f"The ledger {self.path} is closed.")
        if self.find(charge.training, charge.round) is not None:
            raise LedgerError(f"Round {charge.round} of {charge.training} is in the ledger already.")
        records: Iterable[dict[str, Any]] = [{"answer": asdict(charge)}]
        if not self._has_header:
            records = [{"header": _HEADER}, *records]
        lines, head, digests = b"", self._head, set[str]()
        for record in records:
            line, head = ledger_line(record, head)
            lines += line
            digests.add(head)
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._descriptor, lines[written:])
            os.fsync(self._descriptor)
            self._note(head)
        except BaseException as error:
            # The file may hold the charge or not: only reading it again can tell.
            self.close()
            if isinstance(error, OSError):
                raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from error
            raise
        self._charges.append(charge)
        self._digests |= digests
        self._head = head
        self._has_header = True

    def close(self) -> None:
        """Release the lock."""
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> LocalLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_notes(self, content: _Content) -> None:
        """Refuse a ledger that lacks a noted line, or a note that it must have."""
        needs_note = content.has_header and bool(content.charges)
        for note in self._notes:
            note.check(self.path, content.digests, needed=needs_note)

    def _note(self, head: str) -> None:
        for note in self._notes:
            note.write(head)


def read_lines(path: Path) -> tuple[tuple[LocalCharge, ...], tuple[str, ...]]:
    """The charges of a ledger that another process may hold, and the digests of its lines; refuse damage."""
    content = _read(path)
    return tuple(content.charges), tuple(content.digests)


def check_notes(path: Path, witness: Path | None = None) -> None:
    """Refuse a ledger that lacks a noted line, or a note that it must have."""
    content = _read(path)
    for note in [_beside(path)] + ([] if witness is None else [LocalHead(witness)]):
        note.check(path, content.digests, needed=content.has_header and bool(content.charges))


def _beside(path: Path) -> LocalHead:
    return LocalHead(path.with_suffix(".head"))


def _read(path: Path) -> _Content:
    """Return what the complete lines say; refuse damage."""
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    if _is_whole(tail):
        raise LedgerError(f"The last line of the ledger {path} has lost its newline; restore it from a copy.")
    content = _Content([], [], False, sum(len(line) + 1 for line in lines))
    has_header = False
    for number, line in enumerate(lines, 1):
        if not _is_whole(line):
            raise LedgerError(f"Line {number} of the ledger {path} is damaged: its digest does not fit it.")
        try:
            record = decode_json(line)
        except ValueError as error:
            raise LedgerError(f"Line {number} of the ledger {path} is not JSON: {error}.") from error
        if record.get("previous") != content.head:
            raise LedgerError(f"Line {number} of the ledger {path} does not follow the line before it.")
        content.digests.append(line[len(_PREFIX) : _REST - 2].decode())
        if "header" in record:
            if record["header"] != _HEADER or has_header:
                raise LedgerError(f"Line {number} of the ledger {path} is no header that this Tacit reads.")
            has_header = True
        else:
            content.charges.append(_charge(record.get("answer"), number, path))
    return _Content(content.charges, content.digests, has_header, content.size)


def _charge(record: Any, number: int, path: Path) -> LocalCharge:
    try:
        return LocalCharge(**record)
    except TypeError as error:
        raise LedgerError(f"Line {number} of the ledger {path} holds no answer.") from error
    except LedgerError as error:
        raise LedgerError(f"Line {number} of the ledger {path} holds no valid answer: {error}") from error


def _is_whole(line: bytes) -> bool:
    digest = hashlib.sha256(line[_REST:]).hexdigest()
    return line.startswith(_PREFIX) and line[len(_PREFIX) : _REST] == digest.encode() + b'",'


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl  # not with the module: the command line loads it on every platform
    except ImportError as error:
        raise LedgerError(NO_FILE_LOCKS) from error
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LedgerError(f"The ledger {path} is in use by another process.") from error
            time.sleep(0.05)
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise LedgerError(f"The ledger {path} was replaced while it was opened; try again.")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
