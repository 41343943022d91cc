from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.conftest import Tacit

QUICK = "--target renewed --epochs 4 --batch-size 64 --accountant rdp --quiet"


def test_a_run_is_signed_and_checked_on_the_command_line(tacit: Tacit, orders: Path) -> None:
    assert tacit(f"train {orders} {QUICK} --out run --witness witness").code == 0
    assert tacit("certificate run").out == Path("run/certificate.txt").read_text()
    assert "lab.key.pub" in tacit("certificate --new-key lab.key").out
    assert tacit("certificate --new-key lab.key").sentence.endswith(
        "exists already; a key is never overwritten."
    )
    unsigned = tacit("verify run --trust lab.key.pub")
    assert unsigned.code == 1
    assert "is not signed" in unsigned.out
    assert "Signed: run/certificate.sig" in tacit("certificate run --sign lab.key").out
    done = tacit("verify run --trust lab.key.pub")
    assert done.code == 0, done.out
    assert "This check does not show" in done.out
    assert tacit("verify run --json").json["unchecked"]
    assert tacit("certificate --new-key other.key").code == 0
    assert "another key than the trusted one" in tacit("verify run --trust other.key.pub").out
    assert "holds a private key" in tacit("verify run --trust lab.key").sentence
    Path("run/model.safetensors").write_bytes(b"junk")
    changed = tacit("verify run --trust lab.key.pub").out
    assert "model.safetensors is not the one that was certified" in changed
    assert "model.safetensors has changed since it was signed" in changed
    assert "does not verify, so it is not signed" in tacit("certificate run --sign lab.key").sentence


def test_a_run_put_back_from_a_backup_is_refused_with_what_to_do(tacit: Tacit, orders: Path) -> None:
    assert tacit(f"train {orders} {QUICK} --out run --witness witness").code == 0
    ledger = Path("run/ledger.jsonl")
    shutil.copytree("run", "whole")
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:5]))
    sentence = tacit("resume run").sentence
    assert "Restore" not in sentence
    assert "start a new run, and add its epsilon to what this one had promised" in sentence
    Path("run/ledger.head").unlink()
    assert "was put back from a backup" in tacit("resume run").sentence
    assert tacit("verify whole").code == 0
    assert tacit("verify whole --witness nowhere").code == 1


def test_what_certificate_is_asked_must_make_sense(tacit: Tacit) -> None:
    for line in ("certificate", "certificate run --new-key k", "certificate --sign k"):
        assert "Give a run directory" in tacit(line).sentence
    assert "There is no run directory" in tacit("certificate nowhere").sentence


def test_an_entry_for_the_registry_is_written_from_the_run_and_its_owners_words(
    tacit: Tacit, orders: Path
) -> None:
    assert tacit(f"train {orders} {QUICK} --out run").code == 0
    refused = tacit("certificate run --registry entry.yaml")
    assert "say name, curators, description" in refused.sentence
    assert not Path("entry.yaml").exists()
    Path("owner.toml").write_text(
        '[deployment]\nname = "Orders"\ncurators = ["A shop"]\ndescription = "D"\nintended_use = "I"\n'
        'region = "EU"\nauthors = ["A person"]\n'
    )
    assert tacit("certificate run --registry entry.yaml --config owner.toml").code == 0
    assert 'name: "Orders"' in Path("entry.yaml").read_text()
    assert "already exists" in tacit("certificate run --registry entry.yaml --config owner.toml").sentence
    assert "one at a time" in tacit("certificate run --config owner.toml").sentence
    # Words that the run was started with are its own.
    assert tacit(f"train {orders} {QUICK} --config owner.toml --out other").code == 0
    assert tacit("certificate other --registry other.yaml").code == 0


@pytest.mark.parametrize("name", ["[/red]", "[conceal]", ":warning:"])
def test_what_a_received_run_says_is_shown_as_it_stands(tacit: Tacit, orders: Path, name: str) -> None:
    """No markup: a tag would hide the sentences behind it, and one that closes nothing would end the command."""
    assert tacit(f"train {orders} {QUICK} --out run").code == 0
    Path(f"run/{name.replace('/', '')}").touch()
    said = tacit("verify run")
    assert said.code == 0
    assert name.replace("/", "") in said.out
    certificate = Path("run/certificate.json")
    record = json.loads(certificate.read_text())
    record["run"] = name
    certificate.write_text(json.dumps(record))
    said = tacit("verify run")
    assert said.code == 1
    assert f"the certificate is of the run {name!r}" in " ".join(said.out.split())


def test_json_for_a_terminal_spells_out_what_would_steer_it(tacit: Tacit, orders: Path) -> None:
    assert tacit(f"train {orders} {QUICK} --out run").code == 0
    signs = "\x1b\x9b\x7f\u202e"
    Path(f"run/{signs}").touch()
    said = tacit("verify run --json")
    assert not set(signs) & set(said.out)
    assert signs in json.loads(said.out)["unchecked"][-2]


def test_what_a_received_run_says_does_not_steer_the_terminal(tacit: Tacit, orders: Path) -> None:
    assert tacit(f"train {orders} {QUICK} --out run").code == 0
    certificate = Path("run/certificate.json")
    record = json.loads(certificate.read_text())
    record["files"]["\x1b]0;title\x07\u202e"] = "0" * 64
    certificate.write_text(json.dumps(record))
    for line in ("verify run", "certificate run"):
        said = tacit(line)
        assert "title" in said.out
        assert not {"\x1b", "\x07", "\u202e"} & set(said.out + said.err)
