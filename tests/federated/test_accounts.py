"""The certificate of a client: computed anew from plans and ledger, and refused where a file was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import LedgerError
from tacit.federated.accounts import account_of, certify, is_client, statement_of, verify_client
from tacit.federated.client import RECORDS_FILE, LocalClient, plan_file, write_records
from tacit.federated.data import synthetic
from tacit.federated.protocol import Question
from tacit.release.ledger_file import START, ledger_line
from tacit.report.client import client_page

D = 6
FIRST = Question("demo", 1, 3, D, "logistic", 1e-4, "ps", "pm", 3.0, 0.1, 0.2, 0.1)
SECOND = replace(FIRST, training="demo-2", rounds=2, epsilon=1.0, solution="vector")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A client that has answered in two trainings, with its certificate."""
    write_records(tmp_path / RECORDS_FILE, synthetic(5, D, 0.5, 0.5, seed=1))
    client = LocalClient(tmp_path, 4.0)
    for question, rounds in ((FIRST, 3), (SECOND, 1)):
        for number in range(1, rounds + 1):
            client.answer(replace(question, round=number), np.zeros(D, np.float32))
    certify(tmp_path, 4.0)
    return tmp_path


def test_a_client_verifies_over_all_its_trainings(folder: Path) -> None:
    assert is_client(folder)
    verdict = verify_client(folder)
    assert verdict.agrees, verdict.problems
    assert verdict.answers == 4
    assert verdict.epsilon == pytest.approx(3.5)
    certificate = json.loads((folder / "certificate.json").read_text())
    assert [entry["answers"] for entry in certificate["trainings"]] == [3, 1]
    assert certificate["epsilon spent"] <= certificate["budget"] == 4.0
    assert "in 2 trainings, are at most e^3.5 times" in statement_of(folder)
    page = client_page(account_of(folder))
    assert "verified" in page
    assert "demo-2" in page


def test_a_folder_without_records_can_be_verified_by_others(folder: Path) -> None:
    (folder / RECORDS_FILE).unlink()
    assert verify_client(folder).agrees


def _edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (path,) = folder.glob(name)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


def _forged(change: Callable[[list[dict[str, object]]], None]) -> Callable[[Path], None]:
    """A ledger with other charges whose chain and note fit."""

    def forge(folder: Path) -> None:
        path, head, lines = folder / "ledger.jsonl", START, b""
        records = [json.loads(line) for line in path.read_text().splitlines()]
        charges = [record["answer"] for record in records[1:]]
        change(charges)
        for record in ({"header": records[0]["header"]}, *({"answer": charge} for charge in charges)):
            line, head = ledger_line(record, head)
            lines += line
        path.write_bytes(lines)
        (folder / "ledger.head").write_text(f"{head}\n")
        certify(folder, 4.0)

    return forge


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_edited("certificate.json", '"answers": 4', '"answers": 3'), "another answers"),
        (_edited("certificate.json", '"budget": 4.0', '"budget": 3.0'), "above the budget"),
        (_edited("certificate.json", '"delta": 0.0', '"delta": false'), "another delta"),
        (
            _edited("certificate.json", '"delta": 0.0', '"delta": 0.0, "epsilon": 0.001'),
            "says epsilon, which no",
        ),
        (_edited("certificate.json", "tacit-client-1", "tacit-client-2"), "none of a client"),
        (lambda folder: (folder / "certificate.json").unlink(), "certificate.json is missing"),
        (lambda folder: (folder / "answered").unlink(), "answered is missing"),
        (lambda folder: (folder / "ledger.head").unlink(), "is missing"),
        (lambda folder: plan_file(folder, FIRST.digest).unlink(), "cannot be recounted"),
        (
            lambda folder: plan_file(folder, FIRST.digest).write_text(
                plan_file(folder, FIRST.digest).read_text().replace("3.0", "1.5", 1)
            ),
            "it was edited",
        ),
        (lambda folder: plan_file(folder, FIRST.digest).write_text("[]"), "is no plan"),
        (_edited("ledger.jsonl", '"round":2', '"round":3'), "damaged"),
        (_forged(lambda charges: charges[0].update(epsilon=0.5)), "0.5 was charged"),
        (_forged(lambda charges: charges.reverse()), "out of order"),
        (_forged(lambda charges: charges[3].update(plan=FIRST.digest)), "the plan of another training"),
        (_forged(lambda charges: charges[0].update(coordinate=D)), "its plan cannot give"),
    ],
)
def test_every_change_is_named(folder: Path, change: Callable[[Path], None], said: str) -> None:
    change(folder)
    verdict = verify_client(folder)
    assert not verdict.agrees
    assert any(said in problem for problem in verdict.problems), verdict.problems
    assert "does NOT verify" in client_page(account_of(folder))


def test_a_ledger_that_went_back_is_told_by_its_witness(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.write_text((folder / "ledger.head").read_text())
    assert verify_client(folder, witness).agrees
    _forged(lambda charges: charges.pop())(folder)
    assert verify_client(folder).agrees  # nothing in the folder tells
    assert not verify_client(folder, witness).agrees


def test_a_ledger_shorter_than_the_certificate_says_takes_no_further_charge(folder: Path) -> None:
    """Ledger and its note were put back together; the certificate that was written since tells."""
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    (folder / "ledger.head").write_text(f"{json.loads(lines[2])['digest']}\n")
    client = LocalClient(folder, 40.0)
    for number in (2, 3):
        with pytest.raises(LedgerError, match=r"does not reach as far as .*certificate\.json says"):
            client.answer(replace(FIRST, round=number), np.zeros(D, np.float32))
    assert path.read_bytes() == b"".join(lines[:3])
    path.write_bytes(b"".join(lines))
    client.answer(
        replace(SECOND, round=2), np.zeros(D, np.float32)
    )  # a ledger may be ahead of the certificate
    assert client.answer(replace(SECOND, round=2), np.zeros(D, np.float32))
