"""Commands of a federation: keys, terms with members, the relay, and stopping what runs in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner, Result

from sites.small import terms, write_csv
from tacit.cli.main import app
from tacit.data import write_schema
from tacit.errors import FileError
from tacit.federated.folder_lock import FolderLock, is_locked, stop_holder
from tacit.sites.masks import public_of, read_key
from tacit.sites.terms import read_terms

pytestmark = pytest.mark.usefixtures("quick_looks")


def tacit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_keys_terms_and_folders_of_a_secure_sum(tmp_path: Path) -> None:
    write_schema(terms().schema, tmp_path / "schema.toml")
    members = []
    for name in ("north", "south"):
        shown = tacit("site", "key", tmp_path / f"{name}.key")
        public = shown.output.strip()
        assert public == public_of(read_key(tmp_path / f"{name}.key"))
        members += ["--member", f"{name}={public}"]
    assert tacit("site", "key", tmp_path / "north.key").exit_code != 0
    init = ("fed", "init", tmp_path / "study", "--schema", tmp_path / "schema.toml", "--rounds", "3")
    assert tacit(*init, *members).exit_code != 0  # the noise is part of the terms
    assert tacit(*init, "--epsilon", "2").exit_code != 0
    assert tacit(*init, *members, "--epsilon", "2", "--honest", "3").exit_code != 0
    shown = tacit(*init, *members, "--epsilon", "2")
    assert shown.exit_code == 0, shown.output
    agreed = read_terms(tmp_path / "study" / "training.toml")
    assert agreed.sum is not None
    assert (list(agreed.members), agreed.sum.honest) == (["north", "south"], 1)
    table = write_csv(tmp_path / "patients.csv")
    site = ("site", "init", "--csv", table, "--terms", tmp_path / "study" / "training.toml")
    shown = tacit(*site, "--budget", "2", "--key", tmp_path / "north.key", "--out", tmp_path / "north")
    assert shown.exit_code == 0, shown.output
    assert agreed.members["south"] in shown.output
    assert not (tmp_path / "north.key").exists()


def test_certificates_are_for_the_hosts_that_are_named(tmp_path: Path) -> None:
    assert tacit("fed", "keys", tmp_path, "--host", "10.0.0.1", "--host", "study.example").exit_code == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "keys" / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["study.example"]
    assert (tmp_path / "keys" / "server.key").stat().st_mode & 0o777 == 0o600
    assert tacit("fed", "keys", tmp_path, "--host", "10.0.0.2").exit_code != 0
    assert tacit("site", "relay-key", tmp_path / "relay.key").exit_code == 0
    assert (tmp_path / "relay.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "relay.pub").is_file()
    assert tacit("site", "relay-key", tmp_path / "relay.key").exit_code != 0


def test_relays_on_other_machines_need_an_address_and_keys(tmp_path: Path) -> None:
    terms().write(tmp_path / "study" / "training.toml")
    run = ("fed", "run", tmp_path / "study")
    for given in (
        ("--listen", "10.0.0.1:9092"),
        ("--relay", "north=north.pub"),
        ("--listen", "10.0.0.1:9092", "--relay", "north=north.pub", "--site", "north=north.sock"),
        ("--listen", "9092", "--relay", "north=north.pub"),
        ("--listen", "10.0.0.1:9092", "--relay", "north"),
        ("--listen", "10.0.0.1:9092", "--relay", "north=north.pub"),
    ):
        assert tacit(*run, *given).exit_code != 0


def test_a_relay_is_told_the_socket_and_no_file_of_the_vault(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the federated extra is not installed")
    from tacit.errors import ArgumentError
    from tacit.sites.flower.deploy import relay_command

    with pytest.raises(ArgumentError, match="root-certificates"):
        relay_command("h:1", "north", tmp_path / "v.sock", None, None, insecure=False)
    command = relay_command(
        "h:1", "north", tmp_path / "v.sock", Path("ca.crt"), Path("r.key"), insecure=False
    )
    assert command[command.index("--node-config") + 1] == f'site="north" socket="{tmp_path / "v.sock"}"'
    assert command[command.index("--auth-supernode-private-key") + 1] == "r.key"
    assert "--insecure" not in command


HOLD = """
import pathlib, sys, time
from tacit.federated.flower.processes import stop_on_signals
from tacit.federated.folder_lock import FolderLock
stop_on_signals()
with FolderLock(pathlib.Path(sys.argv[1]), "The folder"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_what_runs_in_a_folder_is_told_to_stop(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    assert not stop_holder(lock, 1.0)
    assert "nothing runs here" in " ".join(tacit("fed", "stop", tmp_path).output.split())
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_locked(lock)
        assert "stopped" in tacit("fed", "stop", tmp_path).output
        assert process.wait(60) == 128 + 15
    assert not is_locked(lock)
    with FolderLock(lock, "The folder"):
        lock.write_text("nobody")
        with pytest.raises(FileError, match="cannot be told to stop"):
            stop_holder(lock, 1.0)
