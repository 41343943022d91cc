"""A witness: a file in a second place that notes how far a ledger reaches.

A run directory that is put back from a backup is consistent in itself: its ledger, the note of its head and its
checkpoint fit together, and the releases made since are missing from all of them. Only something outside of the
directory can tell. Keep the witness on another disk or machine, and never restore it together with the run.

The file only grows. A charge writes one line, "RUN COUNT HEAD", after the ledger has it on disk and before its noise is
drawn, and returns once the line is on disk too; charges that are written at once have one line. So of everything that
was released the witness knows; after a crash between the two the ledger is ahead by what was written last, at most.
Several runs may share one witness. A line begins with its newline, so that what a crash has cut off stays a line by
itself.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from tacit.errors import LedgerError
from tacit.files import sync
from tacit.release.ledger_file import LedgerRecord

_LINE = re.compile(r"([0-9a-z-]{1,64}) ([0-9]{1,18}) ([0-9a-f]{64})")
_CUT = re.compile(r"[0-9a-z-]{1,64}( ([0-9]{1,18}( [0-9a-f]{0,63})?)?)?")


class Witness:
    """A file outside of the run directory that knows the last line of a run's ledger."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    def note(self, run: str, count: int, head: str) -> None:
        """Note that the ledger of ``run`` has ``count`` charges and ends with ``head``; return once it is on disk."""
        line = f"{run} {count} {head}"
        if not _LINE.fullmatch(line):
            raise LedgerError(
                f"The witness cannot note the run {run!r}: its name has other characters than a-z, 0-9, -."
            )
        content = f"\n{line}".encode()
        try:
            new = not self.path.exists()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, content) != len(content):
                    raise OSError(errno.ENOSPC, "the line was cut off")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if new:
                sync(self.path.parent, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(
                f"The witness {self.path} cannot be written: {error.strerror}. Nothing was released; resume the run "
                "once it can."
            ) from error

    def last(self, run: str) -> tuple[int, str] | None:
        """The number of charges and the head of the ledger that were noted last for ``run``."""
        try:
            lines = self.path.read_bytes().decode("ascii", errors="replace").split("\n")
        except OSError as error:
            raise LedgerError(f"The witness {self.path} cannot be read: {error.strerror}.") from error
        found = None
        for number, line in enumerate(lines, start=1):
            fields = _LINE.fullmatch(line)
            if fields is None and line and not _CUT.fullmatch(line):
                raise LedgerError(
                    f"Line {number} of the witness {self.path} is damaged, so it cannot vouch for anything."
                )
            if fields is not None and fields[1] == run:
                found = int(fields[2]), fields[3]
        return found

    def check(self, ledger: LedgerRecord) -> None:
        """Refuse a ledger that lacks what was noted last, or that the witness has not followed."""
        noted = self.last(ledger.run)
        if noted is None:
            raise LedgerError(
                f"The witness {self.path} knows nothing of the run {ledger.run}, although the run was started with a "
                "witness: this is another file, or its lines are gone."
            )
        count, head = noted
        charged = len(ledger.charges)
        if head not in ledger.counts:
            raise LedgerError(
                f"The witness {self.path} has noted {count} releases of this run, and the ledger with its {charged} is "
                "not the one that it followed: the run directory was put back from a backup, cut or rewritten. "
                "Releases are missing from it, so no true epsilon can be stated and the run cannot continue: start a "
                "new run, and add its epsilon to what this one had promised."
            )
        if ledger.counts[head] != count or charged - count > ledger.newest:
            raise LedgerError(
                f"The witness {self.path} stops at {count} releases, the ledger has {charged}: the witness was put "
                "back from a backup or edited, so it cannot vouch for anything."
            )
