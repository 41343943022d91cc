"""A note of how far a client's ledger reaches, so that a shorter one is not taken for it.

The note is the digest of the ledger's last line. It is written whole or not at all, after the line was synced.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import FileError, LedgerError
from tacit.files import write_bytes

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
