"""The local socket of a vault: one question and one reply per connection, each with its length before it."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from tacit.errors import FileError, TacitError

SECONDS_TO_SEND = 30.0
LONGEST_REPLY = 1 << 31
_LENGTH = 8


class WireError(TacitError):
    """A message did not come through."""


def ask(path: str | Path, payload: bytes, seconds: float = 60.0) -> bytes:
    """The reply of the vault that listens at ``path``. Nothing else of it can be reached."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            send(connection, payload)
            return receive(connection, LONGEST_REPLY)
    except OSError as error:
        raise WireError(f"No vault answers at {path}: {error.strerror or error}.") from error


def send(connection: socket.socket, payload: bytes) -> None:
    """Send one message."""
    connection.sendall(len(payload).to_bytes(_LENGTH, "big") + payload)


def receive(connection: socket.socket, longest: int) -> bytes:
    """Receive one message; one that says it is longer than ``longest`` is not read."""
    size = int.from_bytes(_exactly(connection, _LENGTH), "big")
    if size > longest:
        raise WireError("The message is too long.")
    return _exactly(connection, size)


def listen(path: Path, group: int | None = None) -> socket.socket:
    """A socket at ``path`` that this user can connect to and, if given, one ``group``.

    A socket that a vault left behind is replaced; any other file, and a socket that is in use, is refused.
    """
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileError(f"{path} exists and is no socket; choose another place.")
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            raise FileError(f"Another vault listens at {path}; stop that one first.")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o177)  # nobody else can connect, not even for a moment
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
        listener.listen(8)
    except OSError as error:
        listener.close()
        raise FileError(f"Nothing can listen at {path}: {error.strerror or error}.") from error
    return listener


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise WireError("The other side ended in the middle of a message.")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
