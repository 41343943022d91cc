"""The last round that a site has answered under a mask: a note beside the checkpoint, on disk before the answer leaves.

Two answers under one mask show their difference, so a round that was answered is never answered afresh. The checkpoint
holds the newest answer. If it is put back by itself, the ledger is still whole, and only this note tells.
"""

from __future__ import annotations

from pathlib import Path

from tacit.errors import FileError
from tacit.files import read_json, write_json

SENT_FILE = "answered.json"


class Sent:
    """The note of a site in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SENT_FILE
        record = read_json(self._path) if self._path.exists() else None
        found = record.get("round") if isinstance(record, dict) else None
        if type(found) is not int or found < 0:
            raise FileError(
                f"{self._path} does not say which round was answered last: it is gone, was edited or put back without "
                "the rest. This site cannot answer under its masks any more."
            )
        self._round = found

    @classmethod
    def start(cls, folder: Path) -> None:
        """Note that nothing was sent yet."""
        write_json(folder / SENT_FILE, {"round": 0})

    def check(self, answered: int) -> None:
        """Refuse a checkpoint whose newest answer, of the round ``answered``, is older than what was sent."""
        if answered < self._round:
            raise FileError(
                f"This site has answered round {self._round}, and its checkpoint in {self._path.parent} knows of round "
                f"{answered} only: it was put back from a backup. A round that is answered twice under one mask can be "
                "read, so this site cannot go on."
            )

    def note(self, number: int) -> None:
        """Note that the answer of a round, which the checkpoint holds, is about to leave; return once it is on disk."""
        if number > self._round:
            write_json(self._path, {"round": number})
            self._round = number
