"""A note beside the ledger of how far it reaches, so that a ledger that was cut is not taken for a shorter one.

The note is the digest of the last line that ``charge`` has returned for. It is written without a sync of its own:
after a power cut it may be behind, which is harmless, and it is never ahead of what was synced to the ledger.
"""

from __future__ import annotations

import os
from pathlib import Path

from tacit.errors import LedgerError
from tacit.release.ledger_lines import LedgerRecord


def head_file(ledger: Path) -> Path:
    """Where the note of a ledger stands."""
    return ledger.with_suffix(".head")


def note_head(ledger: Path, digest: str) -> None:
    """Note the last line of a ledger, in place."""
    try:
        descriptor = os.open(head_file(ledger), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, f"{digest}\n".encode(), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LedgerError(
            f"{head_file(ledger)} cannot be written: {error.strerror}. Nothing was released; resume the run once the "
            "disk is well."
        ) from error


def check_head(ledger: Path, record: LedgerRecord) -> None:
    """Refuse a ledger that lacks the line which was noted last; without a note there is nothing to compare."""
    path = head_file(ledger)
    try:
        noted = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}.") from error
    if noted.decode("ascii", errors="replace").strip() not in record.counts:
        raise LedgerError(
            f"The ledger {ledger} does not reach as far as {path.name} says: it was cut, rewritten or put back from a "
            "backup, or one of the two is damaged. Releases may be missing from it, so no true epsilon can be stated "
            "and the run cannot go on: start a new run, and add its epsilon to what this one had promised."
        )
