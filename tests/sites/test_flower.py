"""Sites through Flower: the relay carries bytes, and the server's app runs rounds with whoever is connected."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the federated extra is not installed")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from sites.small import ROUNDS, SPARE, site, terms, write_csv
from sites.test_local_vault import TERMS as LOCAL_TERMS
from sites.test_local_vault import made as local_site
from tacit.federated.accounts import verify_client
from tacit.release.ledger_file import read_ledger
from tacit.sites.coordinator import RoundError
from tacit.sites.flower.relay import NO_VAULT, app
from tacit.sites.flower.server import GridSites, run_training
from tacit.sites.messages import read_message, write_message
from tacit.sites.serving import answer_all, open_vault
from tacit.sites.wire import listen

FACTS = write_message({"kind": "facts"})


@pytest.fixture(autouse=True)
def _inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower sets these in the processes it starts; a message cannot be made without them."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class FakeGrid:
    """A grid whose nodes are relays in this process; ``lost`` messages never arrive."""

    def __init__(self, relays: dict[int, dict[str, Any]]) -> None:
        self.relays = relays
        self._replies: dict[str, Message] = {}
        self._count = 0

    def get_node_ids(self) -> list[int]:
        return list(self.relays)

    def push_messages(self, messages: list[Message]) -> list[str]:
        identifiers = []
        for message in messages:
            self._count += 1
            identifier, node = str(self._count), message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = identifier
            reply = app(message, Context(1, node, self.relays[node], RecordDict(), {}))
            reply.metadata.__dict__["_src_node_id"] = node
            reply.metadata.__dict__["_reply_to_message_id"] = identifier
            self._replies[identifier] = reply
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, identifiers: set[str]) -> list[Message]:
        return [
            self._replies.pop(identifier) for identifier in list(identifiers) if identifier in self._replies
        ]


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        yield Path(name)


@contextlib.contextmanager
def listening(folder: Path, path: Path) -> Iterator[Path]:
    vault = open_vault(folder)
    with listen(path) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                answer_all(vault, listener)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    vault.close()


def asked(content: dict[str, Any], config: dict[str, Any]) -> Message:
    message = Message(RecordDict({"question": ConfigRecord(content)}), 7, "train", group_id="1")
    return app(message, Context(1, 7, config, RecordDict(), {}))


def settings(folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "sites": "a,b",
        "quorum": 0,
        "learning-rate": 0.0,
        "round-timeout": 30.0,
        "patience": 0.5,
    }


def test_a_relay_without_a_vault_says_so(short: Path) -> None:
    for config in ({}, {"site": "a", "socket": str(short / "none.sock")}):
        reply = asked({"payload": FACTS}, config)
        assert reply.error.code == NO_VAULT


def test_rounds_run_through_relays_and_each_is_paid_once(short: Path, keep: Path) -> None:
    folders = {name: site(short, name, keep=keep, seed=number) for number, name in enumerate("ab")}
    terms().write(short / "c" / "training.toml")
    config = settings(short / "c")
    with (
        listening(folders["a"], short / "a.sock") as first,
        listening(folders["b"], short / "b.sock") as second,
    ):
        reply = asked({"payload": FACTS}, {"site": "a", "socket": str(first)}).content.config_records["reply"]
        assert reply["site"] == "a"
        assert read_message(reply["payload"], {})[0]["answers"] == ROUNDS + SPARE
        grid: Any = FakeGrid({11: {"site": "a", "socket": str(first)}})
        with pytest.raises(RoundError, match="'b' does not answer"):
            run_training(grid, config)
        assert not json.loads((short / "c" / "result.json").read_text())["finished"]
        grid.relays[12] = {"site": "b", "socket": str(second)}
        grid.relays[13] = {"site": "b", "socket": str(first)}  # a second node that says it is b is not heard
        sites = GridSites(grid, 30.0, 0.5)
        assert set(sites({"a": FACTS, "b": FACTS})) == {"a", "b"}
        run_training(grid, config)
    result = json.loads((short / "c" / "result.json").read_text())
    assert result["finished"]
    assert result["answers used"] == result["answers paid"] == 2 * ROUNDS
    assert [len(read_ledger(f / "ledger.jsonl").charges) for f in folders.values()] == [ROUNDS] * 2


def test_local_sites_answer_through_the_same_relays(short: Path) -> None:
    folders = {name: local_site(short, name, seed) for seed, name in enumerate("ab")}
    LOCAL_TERMS.write(short / "c" / "training.toml")
    config = settings(short / "c")
    with (
        listening(folders["a"], short / "a.sock") as first,
        listening(folders["b"], short / "b.sock") as second,
    ):
        grid: Any = FakeGrid(
            {11: {"site": "a", "socket": str(first)}, 12: {"site": "b", "socket": str(second)}}
        )
        run_training(grid, config)
    result = json.loads((short / "c" / "result.json").read_text())
    assert result["finished"]
    assert result["answers used"] == result["answers paid"] == 2 * LOCAL_TERMS.training.rounds
    assert all(verify_client(folder).agrees for folder in folders.values())


@pytest.mark.skipif(not os.environ.get("TACIT_FED_E2E"), reason="long; set TACIT_FED_E2E=1 to run it")
@pytest.mark.parametrize(
    ("guarantee", "agreed", "verified", "state"),
    [
        (("--sampling-rate", "0.5"), ("--unit", "patient"), "The run verifies", "3 of 5"),  # two are spare
        (("--local", "--epsilon", "3"), (), "The client verifies", "3 of 3"),
    ],
    ids=["sites", "local"],
)
def test_commands_from_csv_files_to_a_verified_model_through_flower(
    short: Path, guarantee: tuple[str, ...], agreed: tuple[str, ...], verified: str, state: str
) -> None:
    """The guide, command by command, with real processes: SuperLink, plain SuperNodes, vaults."""

    def tacit(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tacit", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=short,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    from tacit.data import write_schema

    write_schema(terms().schema, short / "schema.toml")
    tacit("fed", "init", "study", "--schema", "schema.toml", "--rounds", "3", *guarantee)
    vaults, sites = [], []
    for number, name in enumerate(("north", "south")):
        write_csv(short / f"{name}.csv", seed=number)
        options = (
            "--csv",
            f"{name}.csv",
            "--terms",
            "study/training.toml",
            *agreed,
            "--budget",
            "3",
        )
        tacit("site", "init", *options, "--out", name)
        vaults.append(subprocess.Popen([sys.executable, "-m", "tacit", "site", "serve", name], cwd=short))
        sites += ["--site", f"{name}={name}.sock"]
    try:
        while not all((short / f"{name}.sock").exists() for name in ("north", "south")):
            assert all(vault.poll() is None for vault in vaults)
        write_csv(short / "public.csv", seed=9)
        tacit("fed", "run", "study", *sites, "--flower", "--test", "public.csv")
    finally:
        for vault in vaults:
            vault.terminate()
            vault.wait(60)
    assert "finished" in tacit("fed", "status", "study")
    for name in ("north", "south"):
        assert verified in tacit("verify", name)
        assert state in tacit("site", "status", name)
