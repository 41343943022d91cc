"""Real Flower processes on the loopback interface; the long checks run with TACIT_FED_E2E=1."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the federated extra is not installed")

from tacit.data import Number, Schema, Target, write_schema
from tacit.federated.accounts import verify_client
from tacit.federated.client import LEDGER_FILE, RECORDS_FILE
from tacit.federated.data import synthetic
from tacit.federated.flower.bundle import RunSettings
from tacit.federated.flower.certificates import make_node_key
from tacit.federated.flower.deploy import Deployment
from tacit.federated.flower.loopback import client_folders, outcome, prepare_clients, run_on_loopback
from tacit.federated.flower.node import WRONG_APP
from tacit.federated.flower.processes import DeploymentError
from tacit.federated.flower.server_app import APP_LOCK_FILE
from tacit.federated.local_ledger import LocalLedger
from tacit.federated.protocol import Question
from tacit.federated.simulation import split_off_test

slow = pytest.mark.skipif(not os.environ.get("TACIT_FED_E2E"), reason="long; set TACIT_FED_E2E=1 to run it")

CLIENTS, TEST = split_off_test(synthetic(400, 10, 0.5, 0.5, seed=1), seed=0)


def settings(nodes: int, rounds: int, epsilon: float, round_timeout: float = 120.0) -> RunSettings:
    question = Question("demo", 1, rounds, 10, "logistic", 1e-4, "ps", "pm", epsilon, 0.1, 0.2, 0.1)
    return RunSettings(question, 1.0, nodes, nodes, round_timeout, patience=60.0)


def answers(folder: Path, nodes: int) -> list[int]:
    """Count the answers in the ledger of each client, without locking."""
    files = [client / LEDGER_FILE for client in client_folders(folder, nodes)]
    return [file.read_bytes().count(b'"answer":') if file.exists() else 0 for file in files]


def wait_until(ready: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def test_two_nodes_three_rounds(tmp_path: Path) -> None:
    plan = settings(nodes=2, rounds=3, epsilon=3.0)
    result = run_on_loopback(tmp_path, plan, CLIENTS, TEST, budget=3.0, seconds=240.0)
    assert result.rounds == 3
    assert result.answers == (3, 3)
    assert result.spent == pytest.approx((3.0, 3.0))
    report = json.loads((tmp_path / "server" / "result.json").read_text())
    assert report["answers used"] == report["answers asked for"] == result.used == 6
    assert report["finished"] is True
    assert report["replies rejected"] == 0
    assert report["certificate"]["for release"] is True


@slow
def test_clients_with_their_own_records_and_an_app_that_was_written_for_them(tmp_path: Path) -> None:
    def tacit(*arguments: object) -> None:
        subprocess.run([sys.executable, "-m", "tacit", "fed", *map(str, arguments)], check=True)

    schema, study = tmp_path / "schema.toml", tmp_path / "study"
    write_schema(Schema(Target("ill", "binary", ("no", "yes")), {"age": Number(18, 90)}), schema)
    folders = [tmp_path / "north", tmp_path / "south"]
    for number, folder in enumerate(folders):
        mine = tmp_path / f"{number}.csv"
        mine.write_text("age,ill\n" + "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in (30, 60)))
        tacit("client", "--csv", mine, "--schema", schema, "--out", folder)
    tacit("app", study, "--schema", schema, "--nodes", 2, "--rounds", 2, "--epsilon", 2)
    with Deployment(study) as deployment:
        deployment.start_server()
        for number, folder in enumerate(folders):
            deployment.start_node(number, folder, budget=2.0)
        deployment.submit_app(study / "app", "--run-config", str(study / "run.toml"))
        deployment.wait(240.0, needed=2)
    assert json.loads(deployment.result_file.read_text())["answers used"] == 4
    assert all(verify_client(folder).agrees for folder in folders)


def processes_of(folder: Path) -> list[int]:
    """Return the processes that have ``folder`` on their command line or as their place."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(folder) in line or str(folder) in str((entry / "cwd").readlink()):
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_told_to_stop_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    if number is not signal.SIGTERM and not os.environ.get("TACIT_FED_E2E"):
        pytest.skip("long; set TACIT_FED_E2E=1 to run it")
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "tacit", "fed", "run", "syn-L-0.1-0.6", "--folder", str(tmp_path)),
            *("--nodes", "2", "--rounds", "500", "--epsilon", "500"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: min(answers(tmp_path, 2)) >= 1)
        run.send_signal(number)
        assert run.wait(30) != 0
        wait_until(lambda: not processes_of(tmp_path), 60.0)
    finally:
        run.kill()
        run.wait()
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
    paid = answers(tmp_path, 2)
    time.sleep(2.0)
    assert answers(tmp_path, 2) == paid


@slow
def test_a_server_app_that_dies_is_noticed_within_seconds(tmp_path: Path) -> None:
    plan = settings(nodes=1, rounds=500, epsilon=500.0)
    (client,) = prepare_clients(tmp_path, CLIENTS, 1)
    with Deployment(tmp_path / "server") as deployment:
        deployment.start_server()
        deployment.start_node(0, client, budget=500.0)
        deployment.submit(plan)
        wait_until(lambda: answers(tmp_path, 1)[0] >= 1)
        (app,) = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _holds(entry, tmp_path / "server" / APP_LOCK_FILE)
        ]
        os.kill(app, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(DeploymentError, match="ended without a result"):
            deployment.wait(600.0)
        assert time.monotonic() - started < 15


def _holds(entry: Path, file: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(link.readlink() == file for link in (entry / "fd").iterdir())
    return False


@slow
def test_nodes_that_die_are_noticed_within_seconds(tmp_path: Path) -> None:
    plan = settings(nodes=2, rounds=500, epsilon=500.0)
    folders = prepare_clients(tmp_path, CLIENTS, 2)
    with Deployment(tmp_path / "server") as deployment:
        deployment.start_server()
        for number, client in enumerate(folders):
            deployment.start_node(number, client, budget=500.0)
        deployment.submit(plan)
        wait_until(lambda: min(answers(tmp_path, 2)) >= 1)
        for pid in processes_of(folders[1]):
            os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(DeploymentError, match="Of 2 nodes 1 have ended, and a round needs 2 answers"):
            deployment.wait(600.0, plan.needed)
        assert time.monotonic() - started < 15


THIEF = """
import json, pathlib, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

RECORDS, LOOT = pathlib.Path({records!r}), pathlib.Path({loot!r})
client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    return Message(RecordDict({{"loot": ConfigRecord({{"records": RECORDS.read_bytes()}})}}), reply_to=message)

@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    (reply,) = grid.send_and_receive([Message(RecordDict(), nodes[0], "train")], timeout=60)
    got = [reply.error.code, reply.error.reason] if reply.has_error() else [0, "records"]
    if not reply.has_error():
        LOOT.with_suffix(".bin").write_bytes(reply.content.config_records["loot"]["records"])
    LOOT.with_suffix(".part").write_text(json.dumps(got))
    LOOT.with_suffix(".part").rename(LOOT)
"""

THIEF_PROJECT = """
[project]
name = "tacit-fedsel"
version = "1.0.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "tacit"
[tool.flwr.app.components]
serverapp = "thief:server"
clientapp = "thief:client"
"""


def test_a_server_that_sends_its_own_app_gets_an_error_and_no_records(tmp_path: Path) -> None:
    (client,) = prepare_clients(tmp_path, CLIENTS, 1)
    app, loot = tmp_path / "thief", tmp_path / "loot.json"
    app.mkdir()
    (app / "pyproject.toml").write_text(THIEF_PROJECT)
    (app / "thief.py").write_text(THIEF.format(records=str(client / RECORDS_FILE), loot=str(loot)))
    with Deployment(tmp_path / "server") as deployment:
        deployment.start_server()
        deployment.start_node(0, client, budget=0.001)
        deployment.submit_app(app)
        wait_until(loot.exists)
    code, reason = json.loads(loot.read_text())
    assert not loot.with_suffix(".bin").exists()
    assert code == WRONG_APP
    assert "installed Tacit only" in reason
    assert not (client / LEDGER_FILE).exists()


@slow
def test_four_nodes_twenty_rounds(tmp_path: Path) -> None:
    plan = settings(nodes=4, rounds=20, epsilon=40.0)
    result = run_on_loopback(tmp_path, plan, CLIENTS, TEST, budget=40.0, seconds=1_800.0)
    assert result.answers == (20, 20, 20, 20)
    assert result.spent == pytest.approx((40.0,) * 4)


@slow
def test_a_client_out_of_budget_stays_silent_and_the_others_go_on(tmp_path: Path) -> None:
    plan = replace(settings(nodes=2, rounds=3, epsilon=3.0), quorum=1)
    folders = prepare_clients(tmp_path, CLIENTS, 2)
    with Deployment(tmp_path / "server") as deployment:
        deployment.start_server()
        deployment.start_node(0, folders[0], budget=3.0)
        deployment.start_node(1, folders[1], budget=1.0)
        deployment.submit(plan)
        deployment.wait(600.0)
        assert "budget does not cover" in deployment.log("run") + deployment.log("superlink")
    assert outcome(tmp_path, plan, TEST).answers == (3, 1)


@slow
def test_a_killed_node_does_not_stop_the_run(tmp_path: Path) -> None:
    plan = settings(nodes=3, rounds=4, epsilon=4.0, round_timeout=40.0)
    plan = replace(plan, patience=5.0)
    folders = prepare_clients(tmp_path, CLIENTS, 3)
    with Deployment(tmp_path / "server") as deployment:
        deployment.start_server()
        for number, client in enumerate(folders):
            deployment.start_node(number, client, budget=4.0)
        deployment.submit(plan)
        wait_until(lambda: min(answers(tmp_path, 3)) >= 1)
        deployment.kill("node-2")
        deployment.wait(900.0)
    result = outcome(tmp_path, plan, TEST)
    assert result.rounds == 4
    assert result.answers[:2] == (4, 4)
    assert 1 <= result.answers[2] < 4


@slow
def test_a_killed_server_comes_back_and_nobody_pays_twice(tmp_path: Path) -> None:
    plan = settings(nodes=2, rounds=4, epsilon=4.0)
    folders = prepare_clients(tmp_path, CLIENTS, 2)
    with Deployment(tmp_path / "server") as deployment:
        deployment.start_server()
        for number, client in enumerate(folders):
            deployment.start_node(number, client, budget=4.0)
        deployment.submit(plan)
        wait_until(lambda: min(answers(tmp_path, 2)) >= 2)
        deployment.kill("superlink")
        deployment.kill("run")
        assert not deployment.result_file.exists()
        deployment.start_server()
        deployment.submit(plan)
        deployment.wait(900.0)
    result = outcome(tmp_path, plan, TEST)
    assert result.rounds == 4
    assert result.answers == (4, 4)
    assert result.spent == pytest.approx((4.0, 4.0))
    for client in folders:
        with LocalLedger(client / LEDGER_FILE) as ledger:
            assert [charge.round for charge in ledger.charges] == [1, 2, 3, 4]


@slow
def test_tls_and_node_authentication(tmp_path: Path) -> None:
    plan = replace(settings(nodes=2, rounds=2, epsilon=2.0), patience=30.0)
    folders = prepare_clients(tmp_path, CLIENTS, 3)
    with Deployment(tmp_path / "server", secure=True) as deployment:
        deployment.start_server()
        for number in (0, 1):
            deployment.start_node(number, folders[number], budget=2.0)
        make_node_key(tmp_path / "server" / "keys" / "node-2.key")  # a key the server was never given
        deployment.start_node(2, folders[2], budget=2.0)
        deployment.submit(plan)
        deployment.wait(600.0)
    assert answers(tmp_path, 3) == [2, 2, 0]


@slow
def test_virtual_nodes_from_the_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("tacit"),
            *("fed", "run", "syn-L-0.1-0.6", "--folder", str(tmp_path), "--simulation"),
            *("--nodes", "2", "--rounds", "2", "--epsilon", "2", "--round-timeout", "300"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert answers(tmp_path, 2) == [2, 2]


def test_a_supernode_asks_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode import start_client_internal

    from tacit.federated.flower import supernode

    paused: list[float] = []
    monkeypatch.setattr(supernode, "flower_supernode", lambda: start_client_internal.time.sleep(3))
    monkeypatch.setattr(start_client_internal, "time", time)
    monkeypatch.setattr(time, "sleep", paused.append)
    supernode.main()
    assert paused == [supernode.LONGEST_PAUSE]
