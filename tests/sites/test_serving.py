"""The vault as a process: sockets, signals, crashes, and a relay that runs whatever a malicious server sends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import cast

import pytest

import tacit
from sites.small import ROUNDS, SPARE, question, site, terms
from tacit import verify
from tacit.errors import FileError
from tacit.release.ledger_file import read_ledger
from tacit.sites.messages import read_message, write_message
from tacit.sites.serving import Stop, StopError, answer_all, default_socket, serve, stopped_by_signals
from tacit.sites.vault import Vault
from tacit.sites.wire import WireError, ask, listen

NOBODY = 65534
SHAPES = {name: tuple(p.shape) for name, p in terms().build_model().named_parameters()}


class Served:
    """A vault in a process of its own."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tacit", "site", "serve", str(self.folder), "--socket", str(self.path)],
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 120
        while not self.path.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=60)
        return log.decode()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: the path of a socket has about a hundred characters at most."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        yield Path(name)


@pytest.fixture
def served(short: Path, keep: Path) -> Iterator[Served]:
    made = Served(site(short, keep=keep), short / "v.sock")
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


def charged(folder: Path) -> int:
    return len(read_ledger(folder / "ledger.jsonl").charges)


def test_a_vault_answers_at_its_socket_and_certifies_when_it_is_stopped(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o600
    facts, _ = read_message(ask(served.path, write_message({"kind": "facts"})), SHAPES)
    assert facts["answers"] == ROUNDS + SPARE
    first = ask(served.path, question(terms(), 1))
    assert ask(served.path, question(terms(), 1)) == first
    log = served.stop()
    assert served.process.returncode == 0
    assert "round 1: answered" in log
    assert not served.path.exists()
    assert verify(served.folder).for_release
    assert charged(served.folder) == 1


def test_after_a_kill_the_vault_repeats_what_was_paid_for(served: Served) -> None:
    first = ask(served.path, question(terms(), 1))
    served.stop(signal.SIGKILL)
    served.path.unlink()
    served.start()
    assert ask(served.path, question(terms(), 1)) == first
    served.stop()
    assert charged(served.folder) == 1
    assert verify(served.folder).for_release


@pytest.fixture
def listening(short: Path, keep: Path) -> Iterator[Path]:
    """The socket of a vault in a thread of this process, which takes less time to start."""
    vault, stop = Vault(site(short, keep=keep)), Stop()
    with listen(short / "v.sock") as listener:

        def answer() -> None:
            with contextlib.suppress(StopError):
                answer_all(vault, listener, stop)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield short / "v.sock"
        with contextlib.suppress(StopError):
            stop.ask(signal.SIGTERM, None)
        thread.join(10)
        assert not thread.is_alive()
    vault._answers.close()


class NoQuestions:
    """A listener at which waiting is a mistake."""

    def settimeout(self, seconds: float) -> None: ...

    def accept(self) -> None:
        raise AssertionError("it waits for questions")


def test_a_wish_to_stop_is_heard_even_if_its_exception_was_lost() -> None:
    swallowed, overtaken = Stop(), Stop()
    with contextlib.suppress(StopError):
        swallowed.ask(signal.SIGTERM, None)
    with contextlib.suppress(OSError), overtaken.waits():
        overtaken.ask(signal.SIGTERM, None)
        raise OSError("the connection is gone")
    for stop in (swallowed, overtaken):
        with pytest.raises(StopError):
            answer_all(cast(Vault, None), cast(socket.socket, NoQuestions()), stop)


def test_broken_connections_hold_nobody_up(listening: Path) -> None:
    for said in (
        b"",
        b"\0" * 3,
        (2**62).to_bytes(8, "big"),
        (500).to_bytes(8, "big") + b"half",
        b"\xff" * 4096,
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(listening))
            with contextlib.suppress(ConnectionError):
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
    reply, _ = read_message(ask(listening, question(terms(), 1)), SHAPES)
    assert reply["kind"] == "answer"


MALICIOUS = """
import json, os, socket, sys

folder, path, good, pid, package = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), sys.argv[4], sys.argv[5]
stolen = []

def steal(what, how):
    try:
        how()
        stolen.append(what)
    except OSError:
        pass

for name in ("records.safetensors", "ledger.jsonl", "site.json", "checkpoint.safetensors"):
    steal(f"read {name}", lambda: open(f"{folder}/{name}", "rb").read())
    steal(f"write {name}", lambda: open(f"{folder}/{name}", "ab"))
steal("list the folder", lambda: os.listdir(folder))
steal("remove the ledger", lambda: os.unlink(f"{folder}/ledger.jsonl"))
steal("read the memory", lambda: open(f"/proc/{pid}/mem", "rb"))
steal("read the environment", lambda: open(f"/proc/{pid}/environ", "rb").read())
steal("read open files", lambda: [open(f, "rb").read() for f in os.listdir(f"/proc/{pid}/fd")])
steal("kill it", lambda: os.kill(int(pid), 9))

def say(payload, length=None):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        got = b""
        try:
            connection.sendall((len(payload) if length is None else length).to_bytes(8, "big") + payload)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                got += part
        except ConnectionError:
            pass
        return got[8:]

replies = [say(good), say(good)]
for payload in (b"", os.urandom(100), good[:-4], good + bytes(4), good.replace(b"round", b"recor"), b"{}" * 100):
    replies.append(say(payload))
replies.append(say(b"x", 2**40))
print(json.dumps([stolen, [reply.hex() for reply in replies]]))
"""


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="needs root, to run the relay as another user"
)
def test_a_malicious_server_gets_paid_replies_and_nothing_else(
    served: Served, short: Path, tmp_path: Path
) -> None:
    """Any code in the relay's process, any question: the relay is another user than the vault's, and has the socket."""
    short.chmod(0o711)
    os.chown(served.path, -1, NOBODY)  # what --group does
    served.path.chmod(0o660)
    code = tempfile.mkdtemp(prefix="t-")
    app = Path(code) / "app.py"
    app.write_text(dedent(MALICIOUS))
    app.chmod(0o644)
    Path(code).chmod(0o755)
    done = subprocess.run(
        [
            *("/usr/bin/env", "python3", str(app), str(served.folder), str(served.path)),
            *(question(terms(), 1).hex(), str(served.process.pid), str(Path(tacit.__file__).parent)),
        ],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    stolen, replies = json.loads(done.stdout)
    assert stolen == []
    kinds = [read_message(bytes.fromhex(reply), SHAPES)[0]["kind"] for reply in replies if reply]
    assert kinds[:2] == ["answer", "answer"]
    assert set(kinds[2:]) == {"refusal"}
    assert replies[0] == replies[1]
    assert charged(served.folder) == 1
    served.stop()
    assert verify(served.folder).for_release


def test_a_signal_lets_an_answer_that_is_being_worked_on_come_to_its_end(short: Path) -> None:
    """It may be charged already: stopping at once would lose what was paid for."""

    class Working:
        longest = 100

        def respond(self, payload: bytes) -> bytes:
            signal.raise_signal(signal.SIGTERM)
            return b"paid: " + payload

    replies: list[bytes] = []
    with listen(short / "v.sock") as listener:
        client = threading.Thread(target=lambda: replies.append(ask(short / "v.sock", b"question")))
        client.start()
        with stopped_by_signals() as stop, pytest.raises(StopError):
            answer_all(cast(Vault, Working()), listener, stop)
        client.join(10)
    assert replies == [b"paid: question"]


def test_a_folder_that_others_can_enter_is_not_served(short: Path, keep: Path) -> None:
    folder = site(short, keep=keep)
    folder.chmod(0o755)
    patience = threading.Timer(
        20, lambda: os.kill(os.getpid(), signal.SIGTERM)
    )  # one that serves it goes on for ever
    patience.start()
    try:
        with pytest.raises(FileError, match="entered by others"):
            serve(folder, short / "v.sock")
    finally:
        patience.cancel()
    assert not (short / "v.sock").exists()


def test_a_socket_in_use_and_a_file_are_not_replaced(short: Path) -> None:
    (short / "file").write_text("mine")
    with pytest.raises(FileError, match="no socket"):
        listen(short / "file")
    with listen(short / "v.sock"), pytest.raises(FileError, match="Another vault"):
        listen(short / "v.sock")
    with listen(short / "v.sock"):  # one that was left behind
        pass


def test_no_vault_is_one_sentence(short: Path) -> None:
    with pytest.raises(WireError, match="No vault answers"):
        ask(short / "nobody.sock", b"")
    assert default_socket(Path("/srv/hospital")) == Path("/srv/hospital.sock")


def test_a_question_that_is_too_long_is_not_read(listening: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(listening))
        connection.sendall((1 << 22).to_bytes(8, "big"))
        size = int.from_bytes(connection.recv(8), "big")
        reply, _ = read_message(connection.recv(size), SHAPES)
    assert reply == {"kind": "refusal", "reason": "The message is too long."}
