"""Local privacy behind the socket of a vault: one client with all its records; the terms fix what is asked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cli.test_fed import tacit
from sites.small import COLUMNS, TARGETS, write_csv
from tacit.data import Schema, write_schema
from tacit.errors import ArgumentError, FileError, LedgerError, TacitError
from tacit.federated.accounts import verify_client
from tacit.federated.local_ledger import read_lines
from tacit.federated.own_records import read_own_records
from tacit.release.budget import read_budget
from tacit.sites.coordinator import RoundError
from tacit.sites.local_coordinator import LocalCoordinator, coordinator_of
from tacit.sites.local_vault import LocalVault, create_local_site
from tacit.sites.messages import read_message, write_message
from tacit.sites.options import Local, SecureSum, Training
from tacit.sites.serving import open_vault
from tacit.sites.terms import Terms, read_terms
from tacit.sites.transport import InProcess
from tacit.sites.vault import FAILED, Site
from tacit.tensors import read_tensors

ROUNDS, EPSILON = 4, 8.0
SCHEMA = Schema(TARGETS["binary"], COLUMNS)
TERMS = Terms(Training(model="logistic", rounds=ROUNDS), SCHEMA, local=Local(EPSILON))
D = TERMS.question(1).d


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path, "site")


def made(tmp_path: Path, name: str, seed: int = 0, **changed: Any) -> Path:
    rows = read_own_records(write_csv(tmp_path / f"{name}.csv", seed=seed), SCHEMA)
    create_local_site(tmp_path / name, TERMS, rows, changed.pop("site", Site()), epsilon=EPSILON, **changed)
    return tmp_path / name


@pytest.fixture
def vault(folder: Path) -> Iterator[LocalVault]:
    found = open_vault(folder)
    assert isinstance(found, LocalVault)
    yield found
    found._lock.release()


def asked(number: Any, weights: Tensor | None = None, **changed: Any) -> bytes:
    at = torch.zeros(D) if weights is None else weights
    return write_message(
        {"kind": "round", "training": TERMS.digest, "round": number, **changed}, {"weights": at}
    )


def said(reply: bytes) -> dict[str, Any]:
    return read_message(reply, {})[0]


def charged(folder: Path) -> int:
    path = folder / "ledger.jsonl"
    return len(read_lines(path)[0]) if path.exists() else 0


def test_a_round_is_answered_once_and_repeated_free_of_charge_also_after_a_restart(
    folder: Path, vault: LocalVault
) -> None:
    first = vault.respond(asked(1))
    assert set(said(first)) == {"kind", "training", "round", "coordinate", "steps"}
    assert said(first)["kind"] == "answer"
    assert vault.respond(asked(1, torch.ones(D))) == first
    vault.close()
    again = LocalVault(folder)
    assert again.respond(asked(1)) == first
    assert said(again.respond(asked(2)))["round"] == 2
    assert said(again.respond(write_message({"kind": "facts"})))["charged"] == charged(folder) == 2
    again.close()


def test_the_terms_fix_what_is_spent_and_the_folder_verifies(folder: Path, vault: LocalVault) -> None:
    for number in range(1, ROUNDS + 1):
        assert said(vault.respond(asked(number)))["kind"] == "answer"
    assert said(vault.respond(asked(ROUNDS + 1)))["kind"] == "refusal"
    vault.close()
    verdict = verify_client(folder)
    assert verdict.agrees, verdict
    assert verdict.epsilon is not None
    assert 0.9 * EPSILON < verdict.epsilon <= EPSILON
    assert "as one" in json.loads(tacit(f"site status {folder} --json").output)["unit"]
    assert tacit(f"verify {folder}").exit_code == 0


QUESTIONS: dict[str, Any] = {
    "nothing": b"",
    "noise": os.urandom(500),
    "too long": bytes(1 << 22),
    "another kind": write_message({"kind": "records"}),
    "facts and more": write_message({"kind": "facts", "records": True}),
    "without weights": write_message({"kind": "round", "training": TERMS.digest, "round": 1}),
    "another training": asked(1, training="0" * 64),
    "round 0": asked(0),
    "a round beyond the last": asked(ROUNDS + 1),
    "half a round": asked(1.5),
    "a round that is true": asked(True),
    "a round in words": asked("1"),
    "more ε": asked(1, epsilon=100.0),
    "another mechanism": asked(1, select="topk", perturb="none"),
    "more rounds": asked(1, rounds=10_000),
    "a support": asked(1, support={"weights": "01"}),
    "a sum": asked(1, among=["a"]),
    "weights that are none": asked(1, torch.full((D,), float("nan"))),
    "infinite weights": asked(1, torch.full((D,), float("inf"))),
    "huge weights": asked(1, torch.full((D,), 1e30)),
    "fewer weights": asked(1, torch.zeros(D - 1)),
    "a matrix": asked(1, torch.zeros(D, 1)),
    "double precision": asked(1, torch.zeros(D, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_other_questions_get_a_refusal_and_cost_nothing(name: str, folder: Path, vault: LocalVault) -> None:
    reply = said(vault.respond(QUESTIONS[name]))
    assert reply["kind"] == "refusal"
    assert reply["reason"] != FAILED
    assert charged(folder) == 0


def test_a_failure_says_nothing_about_itself(folder: Path, vault: LocalVault) -> None:
    (folder / "records.safetensors").write_bytes(b"Person 17")
    assert said(vault.respond(asked(1)))["reason"] == FAILED


@pytest.mark.parametrize("what", ["ledger", "terms", "records", "witness"])
def test_files_that_were_put_back_or_edited_are_refused(what: str, tmp_path: Path) -> None:
    folder = made(tmp_path, "site", site=Site(witness=str(tmp_path / "note")))
    vault = LocalVault(folder)
    vault.respond(asked(1))
    backup = Path(shutil.copytree(folder, tmp_path / "backup"))
    first = vault.respond(asked(2))
    vault.close()
    match what:
        case "ledger":
            shutil.copy(backup / "ledger.jsonl", folder / "ledger.jsonl")
        case "witness":
            shutil.rmtree(folder)
            shutil.copytree(backup, folder)
        case "terms":
            replace(TERMS, local=Local(40.0)).write(folder / "training.toml")
        case "records":
            (folder / "records.safetensors").write_bytes(b"other")
    with pytest.raises((LedgerError, FileError)):
        LocalVault(folder)
    assert said(first)["kind"] == "answer"


def test_one_process_holds_a_folder(folder: Path, vault: LocalVault) -> None:
    with pytest.raises(FileError, match="in use"):
        LocalVault(folder)


@pytest.fixture
def vaults(tmp_path: Path) -> Iterator[dict[str, LocalVault]]:
    TERMS.write(tmp_path / "coordinator" / "training.toml")
    found = {name: LocalVault(made(tmp_path, name, seed)) for seed, name in enumerate("abc")}
    yield found
    for vault in found.values():
        vault._lock.release()


def test_a_training_with_local_sites_finishes_and_predicts(
    vaults: dict[str, LocalVault], tmp_path: Path
) -> None:
    folder = tmp_path / "coordinator"
    assert coordinator_of(folder) is LocalCoordinator
    coordinator = LocalCoordinator(folder, list("abc"), InProcess(vaults))
    coordinator.run()
    summary = json.loads((folder / "result.json").read_text())
    assert (summary["finished"], summary["answers used"], summary["answers paid"]) == (True, 12, 12)
    assert all(0.9 * EPSILON < site["epsilon spent"] <= EPSILON for site in summary["sites"].values())
    weights, _ = read_tensors(folder / "model.safetensors")
    joined = torch.cat(
        [
            *(w.flatten() for w in weights.values() if w.dim() > 1),
            *(w for w in weights.values() if w.dim() == 1),
        ]
    )
    assert torch.equal(joined, torch.from_numpy(coordinator._aggregator.weights))
    assert joined.abs().sum() > 0
    shown = json.loads(tacit(f"fed status {folder} --json").output)
    assert (shown["round"], shown["finished"]) == (ROUNDS, True)
    predicted = tacit(f"predict {folder} {tmp_path / 'a.csv'} --out {tmp_path / 'scores.csv'}")
    assert predicted.exit_code == 0, predicted.output


def test_a_round_without_quorum_stops_and_goes_on_later_free_of_charge(
    vaults: dict[str, LocalVault], tmp_path: Path
) -> None:
    folder, exchange = tmp_path / "coordinator", InProcess(vaults)

    def alone(questions: Any) -> dict[str, bytes]:
        return exchange({name: payload for name, payload in questions.items() if name == "a"})

    with pytest.raises(RoundError, match="got 1 answers where 2 are needed"):
        LocalCoordinator(folder, list("abc"), alone).run()
    assert not json.loads((folder / "result.json").read_text())["finished"]
    assert [charged(tmp_path / name) for name in "abc"] == [1, 0, 0]
    LocalCoordinator(folder, list("abc"), exchange).run()
    assert [charged(tmp_path / name) for name in "abc"] == [ROUNDS] * 3


def test_replies_that_are_none_are_not_used(vaults: dict[str, LocalVault], tmp_path: Path) -> None:
    exchange = InProcess(vaults)

    def tampered(questions: Any) -> dict[str, bytes]:
        found = exchange(questions)
        if b'\\"round\\"' in questions["c"]:
            answer = said(found["c"])
            found["c"] = write_message({**answer, "coordinate": 10**9})
            found["b"] = b"x"
        return found

    coordinator = LocalCoordinator(tmp_path / "coordinator", list("abc"), tampered, quorum=1)
    coordinator.run()
    assert coordinator.summary()["answers used"] == ROUNDS


def test_a_site_with_other_terms_is_named(vaults: dict[str, LocalVault], tmp_path: Path) -> None:
    replace(TERMS, local=Local(2.0)).write(tmp_path / "other" / "training.toml")
    with pytest.raises(RoundError, match="'a' has agreed to other terms"):
        LocalCoordinator(tmp_path / "other", list("abc"), InProcess(vaults))


def test_terms_are_read_as_they_were_written_and_checked(tmp_path: Path) -> None:
    TERMS.write(tmp_path / "training.toml")
    assert read_terms(tmp_path / "training.toml") == TERMS
    base = Training(rounds=ROUNDS)
    number = Schema(TARGETS["regression"], COLUMNS)
    logistic = TERMS.training
    for make, sentence in (
        (lambda: Terms(base, SCHEMA, local=Local(1.0)), "logistic model"),
        (lambda: Terms(logistic, number, local=Local(1.0)), "one of two classes"),
        (lambda: Terms(logistic, SCHEMA, local=Local(-1.0)), "No site answers"),
        (lambda: Terms(logistic, SCHEMA, local=Local(1e9)), "No site answers"),
        (lambda: Terms(logistic, SCHEMA, local=Local(1.0, "full")), "No site answers"),
        (
            lambda: Terms(
                logistic, SCHEMA, SecureSum(1.0, 1, (("a", "11" * 32), ("b", "22" * 32))), local=Local(1.0)
            ),
            "no secure sum",
        ),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            make()


def test_the_commands_make_a_local_site_and_reserve_from_the_budget_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    monkeypatch.chdir(tmp_path)
    write_schema(SCHEMA, tmp_path / "schema.toml")
    mine = write_csv(tmp_path / "mine.csv")
    assert tacit(f"budget init {mine} --epsilon 3 --delta 1e-5 --unit patient").exit_code == 0
    assert tacit("fed init study --schema schema.toml --rounds 4 --local --epsilon 2").exit_code == 0
    init = "site init --csv mine.csv --terms study/training.toml"
    for options, sentence in (
        ("--budget 1 --out site", "above the budget of 1"),
        ("--budget 2 --unit patient --out site", "leave --unit out"),
        ("--budget 2 --delta 1e-5 --out site", "no key and no δ"),
    ):
        assert sentence in str(tacit(f"{init} {options}").exception)
        assert not (tmp_path / "site").exists()
    assert tacit(f"{init} --budget 2 --out site").exit_code == 0
    (path,) = (tmp_path / "budgets").glob("*.jsonl")
    (entry,) = read_budget(path).entries
    assert entry.cost.pure == (2.0,)
    assert isinstance(tacit(f"{init} --budget 2 --out other").exception, TacitError)
    assert not (tmp_path / "other").exists()
    assert isinstance(tacit("fed init x --schema schema.toml --local").exception, ArgumentError)
