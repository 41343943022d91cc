"""The vault: whatever is asked, it gives answers that were paid for, public facts, or a refusal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sites.small import ROUNDS, SPARE, question, read, records, site, terms, values, weights, write_csv
from tacit import verify
from tacit.data import Number, Schema
from tacit.data.records import read_records
from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.release.ledger_file import read_ledger
from tacit.runs import load_certificate
from tacit.sites.messages import write_message
from tacit.sites.options import Training
from tacit.sites.records import load_records
from tacit.sites.terms import Terms, read_terms
from tacit.sites.vault import FAILED, Site, Vault, check_private, create_site
from tacit.training.answering import PrivateAnswers


def charged(folder: Path) -> int:
    return len(read_ledger(folder / "ledger.jsonl").charges)


@pytest.fixture
def folder(tmp_path: Path, keep: Path) -> Path:
    return site(tmp_path, keep=keep)


@pytest.fixture
def vault(folder: Path) -> Iterator[Vault]:
    made = Vault(folder)
    yield made
    made._answers.close()


def test_a_round_is_answered_once_and_repeated_free_of_charge_also_after_a_restart(folder: Path) -> None:
    vault = Vault(folder)
    first = vault.respond(question(vault.terms, 1))
    assert read(vault, first)["kind"] == "answer"
    assert charged(folder) == 1
    for at in (weights(vault.terms), weights(vault.terms, 5.0)):
        assert vault.respond(question(vault.terms, 1, at)) == first
    vault.close()
    again = Vault(folder)
    assert again.respond(question(again.terms, 1)) == first
    assert charged(folder) == 1
    second = again.respond(question(again.terms, 2))
    assert not torch.equal(values(again.terms, first), values(again.terms, second))
    again.close()


def test_the_budget_covers_the_planned_rounds_and_the_folder_verifies(folder: Path) -> None:
    vault = Vault(folder)
    for number in range(1, ROUNDS + 1):
        assert read(vault, vault.respond(question(vault.terms, number)))["charged"] == number
    assert vault.epsilon <= 4.0
    vault.close()
    verdict = verify(folder)
    assert verdict.agrees, verdict
    assert verdict.for_release
    certificate = load_certificate(folder / "certificate.json")
    assert certificate.charged_releases == ROUNDS
    assert any("at other sites" in sentence for sentence in certificate.not_covered)


def test_what_a_crash_has_lost_is_paid_for_and_the_budget_still_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(folder)
    vault.respond(question(vault.terms, 1))
    with monkeypatch.context() as patched:
        patched.setattr(
            PrivateAnswers, "_save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full"))
        )
        assert read(vault, vault.respond(question(vault.terms, 2)))["reason"] == FAILED
    vault._answers.close()
    assert charged(folder) == 2
    again = Vault(folder)
    for number in range(2, ROUNDS + 1):
        assert read(again, again.respond(question(again.terms, number)))["kind"] == "answer"
    assert charged(folder) == ROUNDS + SPARE
    again.close()
    assert verify(folder).for_release


def test_without_a_spare_answer_a_crash_costs_the_last_round(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(folder)
    with monkeypatch.context() as patched:
        patched.setattr(
            PrivateAnswers, "_save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full"))
        )
        for _ in range(SPARE + 1):
            assert read(vault, vault.respond(question(vault.terms, 1)))["reason"] == FAILED
            vault._answers.close()
            vault = Vault(folder)
    for number in range(1, ROUNDS):
        assert read(vault, vault.respond(question(vault.terms, number)))["kind"] == "answer"
    assert "budget" in read(vault, vault.respond(question(vault.terms, ROUNDS)))["reason"]
    assert charged(folder) == ROUNDS + SPARE
    vault.close()
    assert verify(folder).for_release


def test_terms_that_say_nothing_of_spare_answers_have_none_and_keep_their_digest(tmp_path: Path) -> None:
    before = terms(spare=0)
    before.write(tmp_path / "training.toml")
    assert "spare" not in (tmp_path / "training.toml").read_text()
    assert read_terms(tmp_path / "training.toml") == before
    assert read_terms(tmp_path / "training.toml").digest == before.digest
    terms(spare=3).write(tmp_path / "training.toml")
    assert read_terms(tmp_path / "training.toml").training.answers == ROUNDS + 3


def huge(agreed: Terms) -> dict[str, torch.Tensor]:
    return {name: value + 1e30 for name, value in weights(agreed).items()}


def broken(agreed: Terms, number: float) -> dict[str, torch.Tensor]:
    at = {name: value.clone() for name, value in weights(agreed).items()}
    next(iter(at.values())).flatten()[0] = number
    return at


QUESTIONS: dict[str, Any] = {
    "nothing": lambda agreed: b"",
    "noise": lambda agreed: os.urandom(500),
    "too long": lambda agreed: bytes(1 << 22),
    "another kind": lambda agreed: write_message({"kind": "records"}),
    "facts and more": lambda agreed: write_message({"kind": "facts", "records": True}),
    "facts with weights": lambda agreed: write_message({"kind": "facts"}, weights(agreed)),
    "without weights": lambda agreed: question(agreed, 1, {}),
    "another training": lambda agreed: question(agreed, 1, training="0" * 64),
    "round 0": lambda agreed: question(agreed, 0),
    "a round beyond the last": lambda agreed: question(agreed, ROUNDS + 1),
    "half a round": lambda agreed: question(agreed, 1.5),
    "a round that is true": lambda agreed: question(agreed, True),
    "a round in words": lambda agreed: question(agreed, "1"),
    "no round": lambda agreed: question(agreed, None),
    "less noise": lambda agreed: question(agreed, 1, noise_multiplier=0.0),
    "another clip norm": lambda agreed: question(agreed, 1, clip_norm=1e9),
    "all records": lambda agreed: question(agreed, 1, sampling_rate=1.0),
    "more answers": lambda agreed: question(agreed, 1, rounds=10_000),
    "weights that are none": lambda agreed: question(agreed, 1, broken(agreed, float("nan"))),
    "infinite weights": lambda agreed: question(agreed, 1, broken(agreed, float("inf"))),
    "huge weights": lambda agreed: question(agreed, 1, huge(agreed)),
    "another architecture": lambda agreed: question(
        agreed, 1, weights(terms(model="mlp", width=3)) | {"more": torch.zeros(2)}
    ),
    "other shapes": lambda agreed: question(
        agreed, 1, {name: v[:, :1] for name, v in weights(agreed).items()}
    ),
    "double precision": lambda agreed: question(
        agreed, 1, {n: v.double() for n, v in weights(agreed).items()}
    ),
}


@pytest.fixture(scope="module")
def unasked(tmp_path_factory: pytest.TempPathFactory, keep: Path) -> Iterator[Vault]:
    """A vault that is asked nothing it answers, so that many tests can share it."""
    made = Vault(site(tmp_path_factory.mktemp("unasked"), keep=keep))
    yield made
    made._answers.close()


@pytest.mark.parametrize("what", QUESTIONS)
def test_any_other_question_is_refused_before_anything_is_charged(unasked: Vault, what: str) -> None:
    vault, folder = unasked, unasked.folder
    reply = read(vault, vault.respond(QUESTIONS[what](vault.terms)))
    assert reply["kind"] == "refusal"
    assert reply["reason"] != FAILED
    assert charged(folder) == 0


def test_rounds_never_go_back_and_a_skipped_round_is_lost(vault: Vault, folder: Path) -> None:
    vault.respond(question(vault.terms, 3))
    for number in (1, 2):
        assert "over" in read(vault, vault.respond(question(vault.terms, number)))["reason"]
    assert charged(folder) == 1


def test_of_a_failure_nobody_outside_learns_more_than_that(
    vault: Vault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("patient P17 has the value 93.5")

    monkeypatch.setattr(PrivateAnswers, "answer", fail)
    reply = vault.respond(question(vault.terms, 1))
    assert read(vault, reply) == {"kind": "refusal", "reason": FAILED}


def test_facts_are_the_public_numbers_of_the_plan(vault: Vault) -> None:
    facts = read(vault, vault.respond(write_message({"kind": "facts"})))
    assert (facts["count"], facts["batch_size"], facts["answers"], facts["charged"]) == (
        *(240, 120),
        ROUNDS + SPARE,
        0,
    )
    assert facts["epsilon"] == 4.0
    assert set(facts) == {
        *(
            "kind",
            "training",
            "member",
            "count",
            "counted",
            "batch_size",
            "sampling_rate",
            "noise_multiplier",
        ),
        *("clip_norm", "epsilon", "delta", "answers", "charged"),
    }


def test_units_are_counted_drawn_and_certified(tmp_path: Path, keep: Path) -> None:
    folder = site(tmp_path, keep=keep, unit="patient")
    vault = Vault(folder)
    facts = read(vault, vault.respond(write_message({"kind": "facts"})))
    assert (facts["count"], facts["counted"], facts["batch_size"]) == (80, "units", 40)
    assert read(vault, vault.respond(question(vault.terms, 1)))["kind"] == "answer"
    vault.close()
    assert verify(folder).for_release
    assert "'patient'" in load_certificate(folder / "certificate.json").unit


@pytest.mark.parametrize(
    "file", ["records.safetensors", "training.toml", "site.json", "plan.json", "run.json"]
)
def test_a_folder_with_an_edited_file_is_not_served(
    folder: Path, keep: Path, tmp_path: Path, file: str
) -> None:
    other = site(tmp_path, "other", keep=keep, seed=1, rounds=3)
    (folder / file).write_bytes((other / file).read_bytes())
    with pytest.raises((FileError, LedgerError, ArgumentError)):
        Vault(folder)


def test_a_ledger_that_was_cut_is_not_served(folder: Path) -> None:
    vault = Vault(folder)
    for number in (1, 2):
        vault.respond(question(vault.terms, number))
    vault.close()
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(LedgerError):
        Vault(folder)


def test_one_vault_per_folder(vault: Vault, folder: Path) -> None:
    with pytest.raises(LedgerError):
        Vault(folder)


def test_only_the_owner_can_enter_the_folder(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "records.safetensors").stat().st_mode & 0o777 == 0o600
    check_private(folder)
    folder.chmod(0o750)
    with pytest.raises(FileError, match="entered by others"):
        check_private(folder)


def test_a_folder_is_made_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="already exists"):
        create_site(folder, terms(), records(tmp_path), Site(), epsilon=1.0)


def test_rows_are_read_by_the_schema_alone(tmp_path: Path) -> None:
    """Columns that it does not name are not read, and their order in the file does not matter."""
    path = write_csv(tmp_path / "t.csv")
    found = read_records(path, terms().schema)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join(reversed(line)) for line in lines) + "\n")
    turned = read_records(path, terms().schema)
    assert torch.equal(found.x, turned.x)
    assert torch.equal(found.y, turned.y)
    assert found.x.shape[1] == terms().task.input_shape[0]


def test_a_site_may_hold_one_class_only(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv")
    path.write_text(path.read_text().replace(",yes", ",no"))
    assert float(read_records(path, terms().schema).y.sum()) == 0


def test_records_survive_a_round_trip(folder: Path, tmp_path: Path) -> None:
    assert torch.equal(load_records(folder / "records.safetensors").x, records(tmp_path).x)
    (folder / "records.safetensors").write_bytes(b"nothing")
    with pytest.raises(FileError):
        load_records(folder / "records.safetensors")


def test_terms_are_one_public_file(tmp_path: Path) -> None:
    agreed = terms(model="mlp", width=8)
    agreed.write(tmp_path / "training.toml")
    again = read_terms(tmp_path / "training.toml")
    assert again == agreed
    assert again.digest == agreed.digest != terms().digest
    (tmp_path / "training.toml").write_text(agreed.text + "[more]\n")
    with pytest.raises(FileError):
        read_terms(tmp_path / "training.toml")


@pytest.mark.parametrize(
    "changed",
    [
        {"rounds": 0},
        {"rounds": 10**9},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"clip_norm": 1e-300},
        {"clip_norm": float("inf")},
        {"spare": -1},
        {"model": "wrn-16-4"},
        {"detail": 0.5, "model": "logistic"},
        {"width": 3},
        {"name": "../other"},
    ],
    ids=str,
)
def test_terms_that_no_site_could_keep_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Training(**changed)


def test_a_schema_that_was_read_off_rows_is_refused() -> None:
    read_off = Schema(terms().schema.target, {"age": Number(18, 90, public=False)})
    with pytest.raises(ArgumentError, match="somebody's rows"):
        Terms(Training(), read_off)


def test_a_site_file_is_plain_json(folder: Path) -> None:
    record = json.loads((folder / "site.json").read_text())
    record["format"] = "tacit-site-1"
    (folder / "site.json").write_text(json.dumps(record))
    with pytest.raises(FileError, match="another format"):
        Vault(folder)
