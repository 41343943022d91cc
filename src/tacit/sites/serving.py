"""``tacit site serve``: the vault in a process of its own, at a local socket."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tacit.sites.local_vault import LocalVault
from tacit.sites.messages import refusal
from tacit.sites.terms import TERMS_FILE, read_terms
from tacit.sites.vault import Vault, check_private
from tacit.sites.wire import SECONDS_TO_SEND, WireError, listen, receive, send

log = logging.getLogger("tacit.sites")

_PR_SET_DUMPABLE = 4
_SECONDS_BETWEEN_CHECKS = 0.5


def default_socket(folder: Path) -> Path:
    """Beside the folder, into which nobody else can look."""
    return folder.with_name(f"{folder.name}.sock")


def serve(folder: Path, path: Path, group: int | None = None) -> None:
    """Answer questions at ``path`` until the process is told to stop; then certify what was spent.

    The process forbids others to read its memory or to trace it, where the system allows that (Linux). One question is
    answered at a time. However a connection fails, the next one is taken.
    """
    check_private(folder)
    _forbid_tracing()
    vault = open_vault(folder)
    try:
        with listen(path, group) as listener, stopped_by_signals() as stop:
            log.info("the vault of %s listens at %s", folder, path)
            answer_all(vault, listener, stop)
    except StopError:
        log.info("stopped")
    finally:
        vault.close()
        with contextlib.suppress(OSError):
            path.unlink()


def open_vault(folder: Path) -> Vault | LocalVault:
    """The vault of a site, by the guarantee of its terms."""
    local = (folder / TERMS_FILE).is_file() and read_terms(folder / TERMS_FILE).local is not None
    return LocalVault(folder) if local else Vault(folder)


class StopError(BaseException):
    """The process was told to stop."""


class Stop:
    """A wish to stop: at once, or after the answer that is being worked on, which may be charged already.

    A signal can come where an exception goes no further (in ``__del__``, say) or is overtaken by another one, so
    whoever waits for questions asks ``check`` now and then.
    """

    def __init__(self) -> None:
        self._asked = self._busy = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """What signals call."""
        self._asked = True
        if not self._busy:
            raise StopError

    def check(self) -> None:
        """Raise if somebody has asked."""
        if self._asked:
            raise StopError

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """Let what happens meanwhile come to its end."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        self.check()


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """SIGTERM, SIGHUP and SIGINT become a wish to stop."""
    stop = Stop()
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, stop.ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def answer_all(vault: Vault | LocalVault, listener: socket.socket, stop: Stop | None = None) -> None:
    """Take one connection after the other, for ever."""
    stop = stop or Stop()
    listener.settimeout(_SECONDS_BETWEEN_CHECKS)
    while True:
        stop.check()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            _answer(vault, connection, stop)


def _answer(vault: Vault | LocalVault, connection: socket.socket, stop: Stop) -> None:
    connection.settimeout(SECONDS_TO_SEND)
    try:
        try:
            payload = receive(connection, vault.longest)
        except WireError as error:
            send(connection, refusal(str(error)))
            return
        with stop.waits():
            send(connection, vault.respond(payload))
    except OSError as error:
        log.warning("a connection failed: %s", error)


def _forbid_tracing() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
