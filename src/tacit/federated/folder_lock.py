"""One process per folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import TracebackType

from tacit.errors import NO_FILE_LOCKS, FileError


class FolderLock:
    """A lock on ``path``, taken when it is made; a second process, or a second lock, is refused at once.

    The operating system releases it with its process, however that ends, so a file that is left behind holds nobody up.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise FileError(f"{path} cannot be opened: {error.strerror}.") from error
        if not _try_lock(self._descriptor):
            os.close(self._descriptor)
            raise FileError(f"{what} {path.parent} is in use by another process; stop that one first.")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next process in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_locked(path: Path) -> bool:
    """Return whether some process holds the lock on ``path`` now."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def stop_holder(path: Path, seconds: float) -> bool:
    """Tell the process that holds the lock on ``path`` to stop (SIGTERM) and wait until it has; False if none holds it.

    Raise if it still runs after so many seconds.
    """
    if not is_locked(path):
        return False
    try:
        number = int(path.read_text())
        os.kill(number, signal.SIGTERM)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is locked by a process that cannot be told to stop: {error}.") from error
    deadline = time.monotonic() + seconds
    while is_locked(path):
        if time.monotonic() > deadline:
            raise FileError(f"Process {number} has not stopped within {seconds:g} seconds.")
        time.sleep(0.05)
    return True


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl  # not with the module: the command line loads it on every platform
    except ImportError as error:
        raise FileError(NO_FILE_LOCKS) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
