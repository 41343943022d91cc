from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare, ks_2samp

from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.federated import client as client_module
from tacit.federated.client import (
    ANSWERED_FILE,
    LEDGER_FILE,
    RECORDS_FILE,
    LocalClient,
    RefusalError,
    write_records,
)
from tacit.federated.data import FederatedData, synthetic
from tacit.federated.local_ledger import LocalLedger
from tacit.federated.models import Logistic
from tacit.federated.protocol import ProtocolError, Question, check_reply, read_question
from tacit.federated.sampling import SystemUniforms
from tacit.federated.selection import output_probabilities

D = 8
QUESTION = Question("demo", 1, 4, D, "logistic", 1e-4, "ps", "pm", 4.0, 0.1, 0.25, 0.5)
WEIGHTS = np.zeros(D, np.float32)
RECORDS = synthetic(30, D, 0.5, 0.5, seed=3)


@pytest.fixture
def client(tmp_path: Path) -> LocalClient:
    write_records(tmp_path / RECORDS_FILE, RECORDS)
    return LocalClient(tmp_path, 4.0, np.random.default_rng(0))


def charges(client: LocalClient) -> list[tuple[int, float]]:
    with LocalLedger(client.folder / LEDGER_FILE) as ledger:
        return [(charge.round, charge.epsilon) for charge in ledger.charges]


def test_a_client_uses_the_system_source_by_default(tmp_path: Path) -> None:
    assert isinstance(LocalClient(tmp_path, 1.0).uniforms, SystemUniforms)


def test_an_answer_is_possible_and_charged(client: LocalClient) -> None:
    reply = client.answer(QUESTION, WEIGHTS)
    check_reply(reply, QUESTION, QUESTION.plan().value_perturbation())
    ((number, epsilon),) = charges(client)
    assert number == 1
    assert epsilon == pytest.approx(1.0)


def test_the_same_question_gets_the_same_answer_and_costs_once(client: LocalClient) -> None:
    first = client.answer(QUESTION, WEIGHTS)
    assert all(client.answer(QUESTION, WEIGHTS + i) == first for i in range(5))
    assert len(charges(client)) == 1


def test_the_budget_is_never_exceeded(client: LocalClient) -> None:
    poor = replace(client, budget=2.5)
    for number in (1, 2):
        poor.answer(replace(QUESTION, round=number), WEIGHTS)
    with pytest.raises(RefusalError, match="budget"):
        poor.answer(replace(QUESTION, round=3), WEIGHTS)
    assert len(charges(poor)) == 2
    with pytest.raises(RefusalError, match="budget"):
        poor.answer(replace(QUESTION, training="another"), WEIGHTS)


def test_published_encoding_is_charged_at_its_true_epsilon(client: LocalClient) -> None:
    question = replace(QUESTION, select="pe-paper", mu=0.5, top_share=0.1)
    client.answer(question, WEIGHTS)
    ((_, epsilon),) = charges(client)
    assert epsilon > 1.01
    for number in (2, 3):
        client.answer(replace(question, round=number), WEIGHTS)
    with pytest.raises(RefusalError, match="budget"):
        client.answer(replace(question, round=4), WEIGHTS)


def test_a_plan_cannot_change_on_the_way(client: LocalClient) -> None:
    client.answer(QUESTION, WEIGHTS)
    for change in ({"epsilon": 2.0, "round": 2}, {"epsilon": 2.0}, {"select": "exp", "round": 2}):
        with pytest.raises(RefusalError, match="another plan"):
            client.answer(replace(QUESTION, **change), WEIGHTS)  # type: ignore[arg-type]


def test_a_stale_round_is_refused(client: LocalClient) -> None:
    client.answer(replace(QUESTION, round=3), WEIGHTS)
    with pytest.raises(RefusalError, match="over"):
        client.answer(replace(QUESTION, round=2), WEIGHTS)


def test_a_thousand_questions_at_a_tiny_epsilon_are_refused_at_no_cost(client: LocalClient) -> None:
    """At 10⁻¹² the range of an answer is coarser than its lattice: a thousand answers gave the record away."""
    for epsilon in (1e-300, 1e-14, 1e-12, 1e-6, 0.0099):
        for number in range(200):
            content = {
                **asdict(QUESTION),
                "training": f"t{number}",
                "rounds": 1,
                "epsilon": epsilon,
                "mu": 0.0,
            }
            with pytest.raises(ProtocolError, match="ε₂"):
                client.answer(read_question(content), WEIGHTS)
    assert not (client.folder / LEDGER_FILE).exists()


@pytest.fixture
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of answers, and nobody pulls the plug."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def forget(folder: Path) -> None:
    """Make a new client of the same records: nothing tells that it has answered."""
    for file in folder.iterdir():
        if file.name != RECORDS_FILE:
            file.unlink()


@pytest.mark.usefixtures("_fast_disk")
def test_answers_at_the_least_epsilon_do_not_tell_values_apart(tmp_path: Path) -> None:
    """Two clients with opposite records: what they can say is the same, and a test of 400 answers is at chance."""
    question = replace(QUESTION, rounds=1, epsilon=0.01, mu=0.0, select="random")
    steps = []
    for sign in (1, -1):
        folder = tmp_path / str(sign)
        folder.mkdir()
        records = FederatedData("one", np.ones((1, D), np.float32), np.array([sign], np.float32))
        write_records(folder / RECORDS_FILE, records)
        client = LocalClient(folder, 1e9, np.random.default_rng(sign + 5))
        for trial in range(400):
            steps.append(client.answer(replace(question, training=f"t{trial}"), WEIGHTS).steps)
            if trial % 50 == 49:  # a long ledger is slow to read
                forget(folder)
    first, second = np.array(steps[:400]), np.array(steps[400:])
    assert ks_2samp(first, second).pvalue > 1e-3
    for modulus in (2, 3, 64, 2**20):
        assert ks_2samp(first % modulus, second % modulus).pvalue > 1e-3


@pytest.mark.parametrize("loss", ["cut", "deleted"])
def test_a_client_that_lost_charges_does_not_answer_afresh(client: LocalClient, loss: str) -> None:
    for number in (1, 2):
        client.answer(replace(QUESTION, round=number), WEIGHTS)
    path = client.folder / LEDGER_FILE
    if loss == "cut":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    else:
        path.unlink()
    for number in (1, 2, 3):
        with pytest.raises(LedgerError, match="answers nothing more"):
            client.answer(replace(QUESTION, round=number), WEIGHTS)


@pytest.mark.parametrize("left", ["answered", "residual-*.safetensors"])
def test_a_folder_that_lost_its_ledger_and_the_note_remembers_that_it_had_them(
    client: LocalClient, left: str
) -> None:
    client.answer(QUESTION, WEIGHTS)
    kept = {RECORDS_FILE, *(file.name for file in client.folder.glob(left))}
    assert len(kept) == 2
    for file in client.folder.iterdir():
        if file.name not in kept:
            file.unlink()
    for number in (1, 2):
        with pytest.raises(LedgerError, match="answered before, but its ledger is gone"):
            client.answer(replace(QUESTION, round=number), WEIGHTS)
    assert charges(client) == []


def test_a_folder_without_the_mark_gets_it_back_with_the_next_answer(client: LocalClient) -> None:
    client.answer(QUESTION, WEIGHTS)
    (client.folder / ANSWERED_FILE).unlink()
    client.answer(replace(QUESTION, round=2), WEIGHTS)
    assert (client.folder / ANSWERED_FILE).exists()


def test_a_budget_of_nothing_pays_for_no_answer(client: LocalClient) -> None:
    with pytest.raises(RefusalError, match="budget does not cover"):
        replace(client, budget=0.0).answer(QUESTION, WEIGHTS)
    assert charges(client) == []
    with pytest.raises(ArgumentError, match="budget"):
        replace(client, budget=-1.0)


def test_a_witness_outlives_the_folder(client: LocalClient, tmp_path: Path) -> None:
    watched = replace(client, witness=tmp_path / "elsewhere" / "note")
    watched.answer(QUESTION, WEIGHTS)
    for file in client.folder.glob("ledger.*"):
        file.unlink()
    with pytest.raises(LedgerError, match="elsewhere"):
        watched.answer(QUESTION, WEIGHTS)


@pytest.mark.parametrize("weights", [np.zeros(D + 1, np.float32), np.full(D, np.nan, np.float32)])
def test_bad_weights_are_refused_at_no_cost(client: LocalClient, weights: np.ndarray) -> None:
    with pytest.raises(ProtocolError):
        client.answer(QUESTION, weights)
    assert not (client.folder / LEDGER_FILE).exists()


def test_a_model_of_another_width_is_refused_at_no_cost(client: LocalClient) -> None:
    with pytest.raises(ProtocolError, match="features"):
        client.answer(replace(QUESTION, d=D + 1), np.zeros(D + 1, np.float32))
    assert charges(client) == []


def test_nothing_is_answered_when_the_ledger_cannot_be_written(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(ledger: LocalLedger, charge: object) -> None:
        raise LedgerError("no space")

    monkeypatch.setattr(LocalLedger, "charge", broken)
    with pytest.raises(LedgerError):
        client.answer(QUESTION, WEIGHTS)


def test_the_charge_is_on_disk_before_the_residual_changes(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash right after the charge: the next process repeats the answer, and pays nothing."""

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client_module, "write_bytes", crash)
        with pytest.raises(KeyboardInterrupt):
            client.answer(QUESTION, WEIGHTS)
    assert len(charges(client)) == 1
    again = client.answer(QUESTION, WEIGHTS)
    with LocalLedger(client.folder / LEDGER_FILE) as ledger:
        (only,) = ledger.charges
    assert (only.coordinate, only.steps) == (again.coordinate, again.steps)


def test_the_residual_is_kept_and_the_sent_coordinate_reset(client: LocalClient) -> None:
    gradient = Logistic(D, 1e-4).gradients(WEIGHTS, RECORDS.x, RECORDS.y).mean(axis=0)
    reply = client.answer(QUESTION, WEIGHTS)
    (path,) = client.folder.glob("residual-*.safetensors")
    from safetensors.numpy import load_file

    left = load_file(path)["residual"][0]
    expected = gradient.copy()
    expected[reply.coordinate] = 0
    np.testing.assert_allclose(left, expected, rtol=1e-5, atol=1e-7)
    assert path.stat().st_mode & 0o077 == 0


def test_missing_and_broken_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="records"):
        LocalClient(tmp_path, 4.0).answer(QUESTION, WEIGHTS)
    (tmp_path / RECORDS_FILE).write_bytes(b"broken")
    with pytest.raises(FileError, match="records"):
        LocalClient(tmp_path, 4.0).answer(QUESTION, WEIGHTS)


@pytest.mark.usefixtures("_fast_disk")
def test_answers_of_many_clients_follow_the_exact_law(tmp_path: Path) -> None:
    write_records(tmp_path / RECORDS_FILE, RECORDS)
    rounds = 400
    question = replace(QUESTION, rounds=rounds, epsilon=2.0 * rounds, mu=0.5)
    gradient = Logistic(D, 1e-4).gradients(WEIGHTS, RECORDS.x, RECORDS.y).mean(axis=0)
    rng = np.random.default_rng(7)
    replies = []
    for trial in range(600):
        client = LocalClient(tmp_path, 1e9, rng)
        replies.append(client.answer(replace(question, training=f"t{trial}"), WEIGHTS))
        forget(tmp_path)
    sent = gradient[[reply.coordinate for reply in replies]]
    noise = np.array([reply.value for reply in replies]) - sent
    stated = question.plan().value_perturbation().variance(sent).mean()
    assert np.mean(noise**2) == pytest.approx(stated, rel=0.2)
    assert abs(noise.mean()) < 4 * np.sqrt(stated / len(noise))
    counts = np.bincount([reply.coordinate for reply in replies], minlength=D)
    expected = output_probabilities(question.plan().selection(), gradient[None, :])[0, :D]
    assert chisquare(counts, expected * counts.sum()).pvalue > 1e-3


def test_records_of_one_client_only_are_read(tmp_path: Path) -> None:
    one = FederatedData("one", RECORDS.x[:1], RECORDS.y[:1])
    write_records(tmp_path / RECORDS_FILE, one)
    assert len(client_module.read_records(tmp_path / RECORDS_FILE)) == 1


def test_a_client_answers_once_for_all_its_records_and_is_protected_with_all_of_them(tmp_path: Path) -> None:
    """One record or fifty, ordinary or extreme: one answer, one charge, and outputs within e^ε of each other."""
    extreme = FederatedData("one", np.full((1, D), 3e38, np.float32), np.ones(1, np.float32))
    for name, records in {"many": synthetic(50, D, 0.5, 0.5, seed=4), "one": extreme}.items():
        folder = tmp_path / name
        folder.mkdir()
        write_records(folder / RECORDS_FILE, records)
        answerer = LocalClient(folder, 4.0, np.random.default_rng(1))
        answerer.answer(QUESTION, WEIGHTS)
        assert charges(answerer) == [(1, pytest.approx(1.0))]
    law = QUESTION.plan().selection()
    records = synthetic(50, D, 0.5, 0.5, seed=4)
    of_many, of_one = -(records.y[:, None] * records.x / 2).mean(0), np.arange(D) * 1e38
    probabilities = output_probabilities(law, np.stack([of_many, of_one]))[:, :D]
    ratios = probabilities[0] / probabilities[1]
    assert np.abs(np.log(ratios)).max() <= law.epsilon * (1 + 1e-9)


def test_the_gradient_that_is_answered_with_is_the_mean_over_all_records(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    answer = client_module.two_stage_answers

    def watched(selection: object, perturbation: object, gradient: np.ndarray, *others: object) -> object:
        seen.append(gradient)
        return answer(selection, perturbation, gradient, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(client_module, "two_stage_answers", watched)
    client.answer(QUESTION, WEIGHTS)
    expected = Logistic(D, QUESTION.l2).gradients(WEIGHTS, RECORDS.x, RECORDS.y).mean(axis=0)
    assert seen[0].shape == (1, D)
    np.testing.assert_allclose(seen[0][0], expected, rtol=1e-6)


VECTOR = replace(QUESTION, solution="vector", clip_norm=0.5)


def test_a_vector_reply_is_charged_its_exact_epsilon_and_repeated_at_no_cost(client: LocalClient) -> None:
    reply = client.answer(VECTOR, WEIGHTS)
    mechanism = VECTOR.plan().vector_replies()
    check_reply(reply, VECTOR, mechanism)
    assert charges(client) == [(1, mechanism.epsilon)]
    assert client.answer(VECTOR, WEIGHTS) == reply
    assert len(charges(client)) == 1
    assert not list(client.folder.glob("residual-*"))
    for number in (2, 3, 4):
        client.answer(replace(VECTOR, round=number), WEIGHTS)
    with pytest.raises(RefusalError, match="budget does not cover"):
        client.answer(replace(VECTOR, training="again"), WEIGHTS)


def test_a_training_cannot_change_from_one_coordinate_to_the_vector(client: LocalClient) -> None:
    client.answer(QUESTION, WEIGHTS)
    with pytest.raises(RefusalError, match="another plan"):
        client.answer(replace(VECTOR, round=2), WEIGHTS)
