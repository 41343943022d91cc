"""The ledger: every release is written down, durably, before its noise is drawn.

A file ledger is a text file that only grows. Its first line names the run and the plan; every further line is
one charge. Each line carries a digest of itself and the digest of the line before, so that damage, a missing
line and a changed order are found. Whoever can write the file can also recompute the digests: note the head
elsewhere (in checkpoints and certificates) and ``confirm`` it to find a ledger that was cut or rewritten.

What a crash leaves behind. ``charge`` returns only after the whole line has been written and synced, and the
release draws its noise only after ``charge`` has returned. A complete line at the end may or may not have led
to a release, so it counts. An incomplete line was never synced: its ``charge`` never returned, no noise was
drawn for it and nothing was released, so it is not a charge. Opening the ledger replaces it by a ``torn``
line, where an auditor sees it. A line that lacks only its newline counts. A complete line that is damaged was
synced once, so it is refused, never skipped. A ledger that lacks its noted head (``ledger_head``) has lost
lines after they were synced, so it is refused as well. What ``ledger_head`` cannot notice, a directory that was put
back as a whole, a ``witness`` in a second place can.

Where others ask for answers, a ``sent`` line follows the charge of an answer once the answer is kept and before it
leaves. A checkpoint that does not hold what was sent last was put back.

Charges may be written ahead of their releases, several with one sync: ``charge_ahead``. They count from then on,
whether a release follows or not. ``charge`` then uses them up, one after the other, and refuses any other charge before
they are. A crash leaves charged what was not used up, so the ledger may say more than was released, and never less.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from tacit.errors import NO_FILE_LOCKS, LedgerError
from tacit.plan import RELATION, Spend, epsilon_of
from tacit.release.ledger_file import (
    FORMAT,
    START,
    VERSION,
    Charge,
    LedgerRecord,
    Sent,
    check_head,
    check_next,
    check_sent,
    head_file,
    ledger_line,
    note_head,
    read_ledger,
)
from tacit.release.ledger_lines import Heads
from tacit.release.witness import Witness

try:
    import fcntl
except ImportError as error:
    raise LedgerError(NO_FILE_LOCKS) from error

__all__ = ["Charge", "FileLedger", "Ledger", "LedgerRecord", "MemoryLedger", "read_ledger"]


class Ledger(Protocol):
    """A place that remembers what has been paid."""

    @property
    def charges(self) -> Sequence[Charge]:
        """Every charge so far, in order."""

    def __len__(self) -> int:
        """The number of charges that releases may rely on so far, which is the index of the next."""

    def charge_ahead(self, charges: Sequence[Charge]) -> None:
        """Remember charges that the next releases will ask for, exactly so and in this order."""

    @property
    def ahead(self) -> int:
        """How many of them no release has asked for yet."""

    @property
    def write_seconds(self) -> float:
        """How long it took to remember what was charged last."""

    def charge(self, charge: Charge) -> None:
        """Remember ``charge``; return only once it cannot be forgotten. Its index must be the next one."""


class MemoryLedger:
    """A ledger for tests and for loops that never outlive the process: nothing is written to disk."""

    ahead = 0
    write_seconds = 0.0

    def __init__(self) -> None:
        self._charges: list[Charge] = []

    @property
    def charges(self) -> Sequence[Charge]:
        """Every charge so far, in order."""
        return tuple(self._charges)

    def __len__(self) -> int:
        return len(self._charges)

    def charge_ahead(self, charges: Sequence[Charge]) -> None:
        """Nothing: each is remembered when its release asks for it, which costs nothing here."""

    def charge(self, charge: Charge) -> None:
        """Remember ``charge`` as long as this object lives."""
        check_next(charge, len(self._charges))
        self._charges.append(charge)


class FileLedger:
    """A ledger on disk, held by one process at a time.

    ``create`` starts one, ``open`` continues one. Both take an exclusive lock, which ends with the process
    however it ends; a forked child cannot charge.
    """

    def __init__(self, path: Path, descriptor: int, record: LedgerRecord, witness: Witness | None) -> None:
        self.path = path
        self._witness = witness
        self.run = record.run
        self.plan = record.plan
        self.about = record.about
        self.torn = record.torn
        self.sent = record.sent
        self._descriptor: int | None = descriptor
        self._charges = list(record.charges)
        self._used = len(self._charges)
        self.write_seconds = 0.0
        self._counts = Heads(record.counts)
        self._head = record.head
        _open_ledgers.add(self)

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        run: str,
        plan_digest: str,
        about: str = "",
        prepare: Callable[[], None] | None = None,
        witness: Witness | None = None,
    ) -> FileLedger:
        """Start the ledger of ``run``; refuse a path that exists, because a ledger is never overwritten.

        ``about`` is a digest of what else the run was started with. ``prepare`` is called while no other process can
        start a ledger here and none exists yet: to write what must stand beside it. If it fails, there is no ledger.
        """
        path = Path(path)
        header = {"format": FORMAT, "version": VERSION, "run": run, "plan": plan_digest}
        if about:
            header["about"] = about
        line, digest = ledger_line({"header": header}, START)
        # Written and locked under another name, then linked: a ledger without its header never has this name, and of
        # several processes that start at once only the one that has the lock continues.
        temporary = path.with_name(f".{path.name}.new")
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _lock(descriptor, path)
                if not _is_still(descriptor, temporary):
                    raise FileExistsError
                try:
                    if path.exists():
                        raise FileExistsError
                    _check_none_lost(path)
                    os.ftruncate(descriptor, 0)
                    if witness is not None:
                        witness.note(run, 0, digest)
                    if prepare is not None:
                        prepare()
                    _write(descriptor, line, path)
                    os.link(temporary, path)
                    _note_first(path, digest)
                finally:
                    temporary.unlink(missing_ok=True)
                _sync_directory(path.parent)
            except BaseException:
                os.close(descriptor)
                raise
        except FileExistsError as error:
            raise LedgerError(
                f"The ledger {path} exists already; resume its run or choose another place."
            ) from error
        except OSError as error:
            raise LedgerError(f"The ledger {path} cannot be created: {error.strerror}.") from error
        return cls(
            path,
            descriptor,
            LedgerRecord(run, plan_digest, (), {digest: 0}, digest, 0, b"", len(line), False, about),
            witness,
        )

    @classmethod
    def open(
        cls, path: str | Path, *, plan_digest: str, run: str | None = None, witness: Witness | None = None
    ) -> FileLedger:
        """Go on with a ledger after verifying every line, and that it belongs to this plan (and run)."""
        path = Path(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise LedgerError(f"The ledger {path} cannot be opened: {error.strerror}.") from error
        try:
            _lock(descriptor, path)
            record = read_ledger(path)
            if record.plan != plan_digest:
                raise LedgerError(
                    f"The ledger {path} belongs to another plan; a run continues only with its own plan."
                )
            if run is not None and record.run != run:
                raise LedgerError(f"The ledger {path} belongs to the run {record.run!r}, not to {run!r}.")
            check_head(path, record)
            if witness is not None:
                witness.check(record)
            if record.unended:
                _write(descriptor, b"\n", path)
            if record.tail:
                record = _set_aside(descriptor, record, path)
            if witness is not None:
                witness.note(record.run, len(record.charges), record.head)
            note_head(path, record.head)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, record, witness)

    @property
    def charges(self) -> Sequence[Charge]:
        """Every charge so far, in order; those that were written ahead too."""
        return tuple(self._charges)

    def __len__(self) -> int:
        return self._used

    @property
    def ahead(self) -> int:
        """How many charges were written ahead that no release has asked for yet."""
        return len(self._charges) - self._used

    @property
    def head(self) -> str:
        """The digest of the last line; it stands for the whole content."""
        return self._head

    def confirm(self, head: str) -> int:
        """The number of charges that the ledger had when its head was ``head``, as noted in a checkpoint.

        Raises if it never had that head: then charges are missing or were changed.
        """
        if head not in self._counts:
            raise LedgerError(
                f"The ledger {self.path} is not the one that the checkpoint was written with: it was cut, "
                "rewritten, put back from a backup or belongs to another run, so no true epsilon can be stated: start "
                "a new run, and add its epsilon to what this one had promised."
            )
        return self._counts[head]

    def charge(self, charge: Charge) -> None:
        """Write ``charge`` and return once it is on disk; after a failure take no further charge.

        One that was written ahead is on disk already.
        """
        check_next(charge, self._used)
        if self._descriptor is None:
            raise LedgerError(f"The ledger {self.path} is closed; open it again to charge it.")
        if not self.ahead:
            self._append([charge])
        elif charge != self._charges[self._used]:
            raise LedgerError(
                f"The next release was charged ahead as {self._charges[self._used]}, and cannot be another: {charge}."
            )
        self._used += 1

    def charge_ahead(self, charges: Sequence[Charge]) -> None:
        """Write charges that the next releases will ask for, and return once all are on disk."""
        if self.ahead:
            raise LedgerError(f"{self.ahead} charges were written ahead already; use them up first.")
        for place, charge in enumerate(charges, start=self._used):
            check_next(charge, place)
        if self._descriptor is None:
            raise LedgerError(f"The ledger {self.path} is closed; open it again to charge it.")
        if charges:
            self._append(charges)

    def note_sent(self, number: int, answer: str) -> None:
        """Note that the answer of a round, with digest ``answer``, is about to leave; return once it is on disk."""
        sent = Sent(number, answer, len(self._charges))
        check_sent(sent, self.sent)
        if self._descriptor is None:
            raise LedgerError(f"The ledger {self.path} is closed; open it again to note what is sent.")
        self._append((), {"sent": {"round": number, "answer": answer}})
        self.sent = sent

    def _append(self, charges: Sequence[Charge], note: Mapping[str, Any] | None = None) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        lines, digests = [], [self._head]
        # Which charges were written at once: a crash may come before the witness hears of them.
        ahead = {} if len(charges) < 2 else {"since": charges[0].index}
        contents: list[Mapping[str, Any]] = [{"charge": charge.record(), **ahead} for charge in charges]
        for content in (*contents, *([] if note is None else [note])):
            line, digest = ledger_line(content, digests[-1])
            lines.append(line)
            digests.append(digest)
        # Whatever interrupts the lines below, the file may already hold the charges: only reading it again can
        # tell, so the ledger stays closed until all of them are done.
        self._descriptor, began = None, time.monotonic()
        try:
            _write(descriptor, b"".join(lines), self.path)
            if self._witness is not None:
                self._witness.note(self.run, len(self._charges) + len(charges), digests[-1])
            note_head(self.path, digests[-1])
        except BaseException:
            os.close(descriptor)
            raise
        for charge, digest in zip(charges, digests[1:], strict=False):
            self._charges.append(charge)
            self._counts.add(digest, len(self._charges))
        if note is not None:
            self._counts.add(digests[-1], len(self._charges))
        self._head = digests[-1]
        self._descriptor, self.write_seconds = descriptor, time.monotonic() - began

    def close(self) -> None:
        """Give up the lock; the ledger can be read but takes no further charge."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._abandon()

    def _abandon(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} is in use by another process; wait for it or stop it."
        ) from error


def check_idle(path: Path) -> None:
    """Raise if a process holds the ledger at ``path``: what it has charged is not all that it will."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be opened: {error.strerror}.") from error
    try:
        _lock(descriptor, path)
    finally:
        os.close(descriptor)


def _note_first(path: Path, digest: str) -> None:
    """Note that a ledger has begun: after it is there, because a note without a ledger means that there was one."""
    try:
        note_head(path, digest)
    except BaseException:
        head_file(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise


def _check_none_lost(path: Path) -> None:
    """Refuse to start a ledger where the note of one lies that is gone."""
    if head_file(path).exists():
        raise LedgerError(
            f"{head_file(path)} is there without {path.name}: the ledger of a run is gone, and with it what was paid. "
            "Bring it back, or choose another place, and add up what both runs promise."
        )


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether ``path`` names the file that was opened, and not a later one."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(descriptor: int, line: bytes, path: Path) -> None:
    """Append ``line`` and return once the disk has it."""
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
        os.fsync(descriptor)
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} cannot be written: {error.strerror}. Nothing was released; resume the run "
            "once the disk is well."
        ) from error


def _set_aside(descriptor: int, record: LedgerRecord, path: Path) -> LedgerRecord:
    """Replace an incomplete last line by a note of it; a crash between the two steps loses only the note."""
    note = {"torn": {"bytes": len(record.tail), "start": record.tail[:200].hex()}}
    line, digest = ledger_line(note, record.head)
    os.ftruncate(descriptor, record.size)
    _write(descriptor, line, path)
    counts = Heads(record.counts)
    counts.add(digest, len(record.charges))
    return replace(record, counts=counts, head=digest, tail=b"", size=record.size + len(line))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_open_ledgers: weakref.WeakSet[FileLedger] = weakref.WeakSet()


def _close_in_child() -> None:
    # A worker that outlives a killed run would otherwise keep the lock and block the resume. Closing its copy
    # leaves the parent's lock alone; unlocking would not.
    for ledger in list(_open_ledgers):
        ledger._abandon()


os.register_at_fork(after_in_child=_close_in_child)


def epsilon_of_charges(
    charges: Sequence[Charge], delta: float, accountant: str, relation: str = RELATION
) -> float:
    """ε at ``delta`` of what a ledger holds."""
    paid = Counter((charge.sampling_rate, charge.noise_multiplier) for charge in charges)
    return epsilon_of([Spend(q, sigma, n) for (q, sigma), n in paid.items()], delta, accountant, relation)
