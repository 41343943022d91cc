"""The ledger of one client: every answer it ever gave, what it cost, and what it said.

Lines are chained and synced like those of `tacit.release`, but a charge is another thing here: a pure ε,
for one round of one training, together with the perturbed answer itself. The answer is public once it is
sent, so a question that comes twice (a server that lost it and started again) is answered with the same
words, at no cost.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.errors import LedgerError
from tacit.files import decode_json
from tacit.release.ledger_lines import START, ledger_line

_PREFIX = b'{"digest":"'
_REST = len(_PREFIX) + 64 + 2
_LOCK_SECONDS = 20.0
_TYPES = {"training": str, "plan": str, "round": int, "epsilon": float, "coordinate": int, "steps": int}


@dataclass(frozen=True)
class LocalCharge:
    """One answer: the training and its plan, the round, the exact ε it cost, and what was said."""

    training: str
    plan: str
    round: int
    epsilon: float
    coordinate: int
    steps: int


class LocalLedger:
    """The ledger file of one client, held by one process at a time; created if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"The ledger {self.path} cannot be opened: {error.strerror}.") from error
        try:
            _lock(self._descriptor, self.path)
            self._charges, self._head, size = _read(self.path)
            # An incomplete last line was never synced, so nothing was sent for it.
            os.ftruncate(self._descriptor, size)
            _sync_directory(self.path.parent)
        except BaseException:
            os.close(self._descriptor)
            raise
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

    def find(self, training: str, number: int) -> LocalCharge | None:
        """Return the charge for this round of this training, if there is one."""
        for charge in self._charges:
            if (charge.training, charge.round) == (training, number):
                return charge
        return None

    def charge(self, charge: LocalCharge) -> None:
        """Write ``charge`` and return once it is on disk; refuse to charge a round twice."""
        if not self._open:
            raise LedgerError(f"The ledger {self.path} is closed.")
        if self.find(charge.training, charge.round) is not None:
            raise LedgerError(f"Round {charge.round} of {charge.training} is in the ledger already.")
        line, digest = ledger_line({"answer": asdict(charge)}, self._head)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            self.close()
            raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from error
        self._charges.append(charge)
        self._head = digest

    def close(self) -> None:
        """Give up the lock."""
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> LocalLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(path: Path) -> tuple[list[LocalCharge], str, int]:
    """Return the charges, the head and the size of the complete lines; refuse damage."""
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    if _is_whole(tail):
        raise LedgerError(f"The last line of the ledger {path} has lost its newline; restore it from a copy.")
    charges: list[LocalCharge] = []
    head = START
    for number, line in enumerate(lines, 1):
        if not _is_whole(line):
            raise LedgerError(f"Line {number} of the ledger {path} is damaged: its digest does not fit it.")
        try:
            record = decode_json(line)
        except ValueError as error:
            raise LedgerError(f"Line {number} of the ledger {path} is not JSON: {error}.") from error
        if record.get("previous") != head:
            raise LedgerError(f"Line {number} of the ledger {path} does not follow the line before it.")
        head = line[len(_PREFIX) : _REST - 2].decode()
        charges.append(_charge(record.get("answer"), number, path))
    return charges, head, sum(len(line) + 1 for line in lines)


def _charge(record: Any, number: int, path: Path) -> LocalCharge:
    try:
        charge = LocalCharge(**record)
    except TypeError as error:
        raise LedgerError(f"Line {number} of the ledger {path} holds no answer.") from error
    for name, kind in _TYPES.items():
        if type(getattr(charge, name)) is not kind:
            raise LedgerError(f"Line {number} of the ledger {path} has no valid {name}.")
    if charge.epsilon < 0:
        raise LedgerError(f"Line {number} of the ledger {path} has no valid epsilon.")
    return charge


def _is_whole(line: bytes) -> bool:
    digest = hashlib.sha256(line[_REST:]).hexdigest()
    return line.startswith(_PREFIX) and line[len(_PREFIX) : _REST] == digest.encode() + b'",'


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LedgerError(f"The ledger {path} is in use by another process.") from error
            time.sleep(0.05)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
