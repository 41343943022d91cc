from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the federated extra is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.supercore.task_identity import TaskIdentity

from tacit.errors import ArgumentError, FileError
from tacit.federated import local_ledger
from tacit.federated.client import LEDGER_FILE, LOCK_FILE, RECORDS_FILE, LocalClient, write_records
from tacit.federated.data import synthetic
from tacit.federated.flower.bundle import RunSettings, bundle_digest, project_file
from tacit.federated.flower.client_app import BAD_QUESTION, FAILED, REFUSED, app, guard, make_app
from tacit.federated.flower.deploy import check_finished
from tacit.federated.flower.loopback import (
    RUN_LOCK_FILE,
    prepare_clients,
    run_in_simulation,
    run_on_loopback,
    trainings,
)
from tacit.federated.flower.node import WRONG_APP, Connection, answer, run_node
from tacit.federated.flower.processes import DeploymentError
from tacit.federated.flower.server_app import (
    APP_LOCK_FILE,
    RESULT_FILE,
    TRIES,
    RoundError,
    Rounds,
    run_training,
    summary,
)
from tacit.federated.folder_lock import FolderLock
from tacit.federated.local_ledger import LocalLedger
from tacit.federated.protocol import Question, Reply, read_reply
from tacit.federated.server import Aggregator, Training, start_of
from tacit.federated.simulation import split_off_test

# Flower's own use of a library, when it builds a bundle.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

D = 6
QUESTION = Question("demo", 1, 3, D, "logistic", 1e-4, "ps", "pm", 3.0, 0.1, 0.2, 0.1)


CONTEXT = Context(1, 7, {}, RecordDict(), {})


def ask(message: Message, folder: Path, budget: float = 3.0) -> Message:
    return make_app(lambda _: LocalClient(folder, budget))(message, CONTEXT)


@pytest.fixture(autouse=True)
def _inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower sets these in the processes it starts; a message cannot be made without them."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def asked(question: dict[str, Any] | None = None, node: int = 7, **extra: Any) -> Message:
    content = RecordDict(
        {
            "question": ConfigRecord(question or asdict(QUESTION)),
            "weights": ArrayRecord({"weights": Array(np.zeros(D, np.float32))}),
            **extra,
        }
    )
    return Message(content, node, "train", group_id="1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_records(tmp_path / RECORDS_FILE, synthetic(20, D, 0.5, 0.5, seed=1))
    return tmp_path


def test_an_answer_carries_one_index_and_one_value(folder: Path) -> None:
    reply = ask(asked(), folder)
    assert set(reply.content) == {"answer"}
    assert set(reply.content.config_records["answer"]) == {"training", "round", "coordinate", "steps"}
    answer = read_reply(dict(reply.content.config_records["answer"]))
    with LocalLedger(folder / LEDGER_FILE) as ledger:
        (charge,) = ledger.charges
    assert (charge.coordinate, charge.steps) == (answer.coordinate, answer.steps)


def test_a_client_out_of_budget_refuses(folder: Path) -> None:
    reply = ask(asked(), folder, budget=0.5)
    assert reply.has_error()
    assert reply.error.code == REFUSED
    assert "budget" in str(reply.error.reason)


@pytest.mark.parametrize(
    "question",
    [
        {**asdict(QUESTION), "select": "topk"},
        {**asdict(QUESTION), "perturb": "none"},
        {**asdict(QUESTION), "d": D + 1},
        {**asdict(QUESTION), "epsilon": 3e-12},
        {**asdict(QUESTION), "epsilon": 3e12},
        {"training": "demo"},
    ],
)
def test_a_question_that_would_leak_is_not_answered(folder: Path, question: dict[str, Any]) -> None:
    reply = ask(asked(question), folder)
    assert reply.has_error()
    assert reply.error.code == BAD_QUESTION


def test_a_message_with_more_than_a_question_is_not_answered(folder: Path) -> None:
    reply = ask(asked(more=ConfigRecord({"raw": 1})), folder)
    assert reply.error.code == BAD_QUESTION


def test_a_failure_says_nothing_about_the_data(folder: Path) -> None:
    (folder / RECORDS_FILE).write_bytes(b"age 39, income >50K")
    reply = ask(asked(), folder)
    assert reply.has_error()
    assert reply.error.code == FAILED
    assert reply.error.reason == "The client failed; nothing was sent."


def test_a_ledger_in_use_means_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ledger, "_LOCK_SECONDS", 0.1)
    with LocalLedger(folder / LEDGER_FILE):
        assert ask(asked(), folder).error.code == FAILED


def test_the_guard_lets_nothing_but_answers_out(folder: Path) -> None:
    def leak(message: Message, _: Context) -> Message:
        raw = ArrayRecord({"gradient": Array(np.ones(D, np.float32))})
        answer = ConfigRecord(asdict(Reply("demo", 1, 0, 5)))
        return Message(RecordDict({"answer": answer, "raw": raw}), reply_to=message)

    def chatty(message: Message, _: Context) -> Message:
        answer = ConfigRecord({**asdict(Reply("demo", 1, 0, 5)), "label": 1})
        return Message(RecordDict({"answer": answer}), reply_to=message)

    for inner in (leak, chatty):
        assert guard(asked(), CONTEXT, inner).has_error()


def test_a_message_that_is_no_question_is_not_answered(folder: Path) -> None:
    for kind in ("evaluate", "query", "train.other"):
        message = Message(asked().content, 7, kind)
        reply = answer(make_app(lambda _: LocalClient(folder, 3.0)), bundle(), message, CONTEXT)
        assert reply.error.code == FAILED


def bundle() -> bytes:
    return build_fab_from_files({"pyproject.toml": project_file().encode()})[0]


def test_a_node_answers_for_its_own_bundle_only(folder: Path) -> None:
    installed = make_app(lambda _: LocalClient(folder, 3.0))
    foreign = build_fab_from_files(
        {"pyproject.toml": project_file().replace("client_app:app", "thief:app").encode(), "thief.py": b"1"}
    )[0]
    for other in (foreign, bundle() + b" ", b""):
        reply = answer(installed, other, asked(), CONTEXT)
        assert reply.error.code == WRONG_APP
    assert not (folder / LEDGER_FILE).exists()
    assert not answer(installed, bundle(), asked(), CONTEXT).has_error()


def test_the_bundle_holds_no_code_and_is_the_same_for_every_training(tmp_path: Path) -> None:
    assert hashlib.sha256(bundle()).hexdigest() == bundle_digest()
    (tmp_path / "pyproject.toml").write_text(project_file())
    assert build_fab_from_disk(tmp_path) == bundle()
    with ZipFile(io.BytesIO(bundle())) as archive:
        assert sorted(archive.namelist()) == [".info/CONTENT", "pyproject.toml"]


def test_the_app_that_a_plain_supernode_would_load_refuses() -> None:
    reply = app(asked(), CONTEXT)
    assert reply.error.code == REFUSED
    assert "tacit fed node" in str(reply.error.reason)


def test_a_node_needs_records_and_speaks_in_the_clear_on_its_own_machine_only(tmp_path: Path) -> None:
    for address in ("example.org:9092", "192.0.2.1:9092", "[2001:db8::1]:9092", "9092"):
        with pytest.raises(ArgumentError, match="TLS"):
            Connection(address, insecure=True)
    with pytest.raises(ArgumentError, match="no certificates"):
        Connection("127.0.0.1:1", tmp_path / "ca.crt", insecure=True)
    with pytest.raises(FileError, match="no records"):
        run_node(LocalClient(tmp_path, 1.0), Connection("[::1]:9092", insecure=True))


def replied(node: int, content: dict[str, Any] | Error) -> Message:
    if isinstance(content, Error):
        return Message(content, reply_to=asked(node=node))
    return Message(RecordDict({"answer": ConfigRecord(content)}), reply_to=asked(node=node))


class Nodes:
    """Stands for Flower's grid: each asking gets the next list of replies, from the nodes that are connected."""

    def __init__(self, nodes: list[int], *askings: list[tuple[int, dict[str, Any] | Error]]) -> None:
        self._nodes = nodes
        self._askings = list(askings)
        self.asked = 0

    def get_node_ids(self) -> list[int]:
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.asked += 1
        return [str(number) for number, _ in enumerate(messages)]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [replied(node, content) for node, content in (self._askings.pop(0) if self._askings else [])]


def rounds(aggregator: Aggregator, nodes: int = 4) -> Rounds:
    return Rounds(aggregator, nodes, patience=0.05, timeout=0.05)


def aggregator_of(quorum: int, question: Question = QUESTION) -> Aggregator:
    return Aggregator(Training(question, 1.0, 4, quorum))


ONE_ROUND = replace(QUESTION, rounds=1, epsilon=1.0)
GOOD = asdict(Reply("demo", 1, 2, 1 << 20))


def test_the_server_uses_good_answers_and_rejects_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = aggregator_of(1, ONE_ROUND)
    replies: list[tuple[int, dict[str, Any] | Error]] = [
        (1, GOOD),
        (2, {**GOOD, "round": 3}),
        (3, Error(REFUSED, "budget")),
        (9, GOOD),
        (1, GOOD),
    ]
    rounds(aggregator).run(Nodes([1, 2, 3, 4], replies))
    np.testing.assert_allclose(aggregator.weights, [0, 0, -0.25, 0, 0, 0])
    for reason in ("for round 3", "budget", "no answer to a question", "answered this round already"):
        assert reason in caplog.text
    assert aggregator.done
    assert (aggregator.accepted, aggregator.asked) == (1, 4)


def test_the_server_does_not_wait_for_ever_for_nodes() -> None:
    messages = rounds(aggregator_of(1)).questions(Nodes([5]))
    assert [message.metadata.dst_node_id for message in messages] == [5]


def test_a_round_with_too_few_answers_is_asked_again() -> None:
    aggregator = aggregator_of(2, ONE_ROUND)
    nodes = Nodes([1, 2], [(1, GOOD)], [(1, GOOD), (2, GOOD)])
    rounds(aggregator, 2).run(nodes)
    assert nodes.asked == 2
    assert (aggregator.finished, aggregator.accepted) == (1, 2)
    assert summary(aggregator)["certificate"]["for release"] is True


@pytest.mark.parametrize("connected", [[], [1, 2]])
def test_without_answers_a_training_stops_and_is_not_for_release(connected: list[int]) -> None:
    aggregator = aggregator_of(2)
    nodes = Nodes(connected)
    with pytest.raises(RoundError, match="Round 1 got 0 answers where 2 are needed"):
        rounds(aggregator, 2).run(nodes)
    assert nodes.asked == TRIES
    report = summary(aggregator, "why")
    assert (report["finished"], report["rounds"], report["answers used"]) == (False, 0, 0)
    assert report["certificate"]["for release"] is False


def test_an_app_that_fails_leaves_a_result_that_says_so(tmp_path: Path) -> None:
    config = RunSettings(QUESTION, 1.0, 2, 2, 0.05, 0.05).run_config(tmp_path)
    with pytest.raises(RoundError):
        run_training(Nodes([]), config)
    with pytest.raises(DeploymentError, match=r"stopped early\. Round 1 got 0 answers where 2 are needed"):
        check_finished(tmp_path / RESULT_FILE)
    with (
        FolderLock(tmp_path / APP_LOCK_FILE, "The folder"),
        pytest.raises(FileError, match="in use by another"),
    ):
        run_training(Nodes([]), config)


def test_more_than_half_of_the_nodes_are_the_quorum_unless_one_is_named() -> None:
    assert [RunSettings(QUESTION, 1.0, n, n).needed for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert RunSettings(QUESTION, 1.0, 4, 4, quorum=4).needed == 4


def test_a_budget_of_nothing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    records = synthetic(20, D, 0.5, 0.5, seed=1)
    settings = RunSettings(QUESTION, 1.0, 2, 2)
    for budget in (0.0, 0.9):
        with pytest.raises(ArgumentError, match="An answer costs ε = 1; with a budget"):
            run_on_loopback(tmp_path, settings, records, records, budget, 1.0)
    assert not any(tmp_path.iterdir())


def test_virtual_nodes_pay_for_every_answer_that_is_used(tmp_path: Path) -> None:
    clients, rest = split_off_test(synthetic(60, D, 0.5, 0.5, seed=1), seed=0)
    settings = RunSettings(QUESTION, 1.0, 20, 20)
    with pytest.raises(RoundError, match="Round 3 got 0 answers where 11 are needed"):
        run_in_simulation(tmp_path, settings, clients, rest, budget=2.0)
    result = run_in_simulation(tmp_path, settings, clients, rest, budget=3.0)
    assert (result.rounds, result.used) == (3, 60)
    assert result.answers == (3,) * 20
    assert max(result.spent) <= 3.0


def test_a_training_is_extended_by_another_one_with_the_same_clients(tmp_path: Path) -> None:
    """The weights go on, what was spent stays spent, and a round of either is answered once."""
    clients, rest = split_off_test(synthetic(60, D, 0.5, 0.5, seed=1), seed=0)
    first = RunSettings(QUESTION, 1.0, 4, 4)
    run_in_simulation(tmp_path, first, clients, rest, budget=3.0)
    (reached,) = trainings(tmp_path).values()
    more = replace(QUESTION, training="demo-2", rounds=2, epsilon=2.0)
    second = replace(first, question=more, start=reached)
    with pytest.raises(RoundError, match="Round 1 got 0 answers"):  # the budget is for a lifetime
        run_in_simulation(tmp_path, second, clients, rest, budget=3.0)
    result = run_in_simulation(tmp_path, second, clients, rest, budget=5.0)
    assert (result.answers, result.rounds) == ((2,) * 4, 2)
    assert all(4.999 < spent <= 5.0 for spent in result.spent)
    assert list(trainings(tmp_path)) == ["demo", "demo-2"]
    again = run_in_simulation(
        tmp_path, second, clients, rest, budget=5.0
    )  # finished: nothing is asked or paid
    assert (again.rounds, again.spent) == (2, result.spent)
    longer = replace(second, question=replace(more, rounds=3))
    with pytest.raises(FileError, match="belongs to another training"):
        run_in_simulation(tmp_path, longer, clients, rest, budget=9.0)
    check_finished(tmp_path / "server-demo-2" / RESULT_FILE)
    begun = Aggregator(Training(more, 1.0, 4, 1), None, reached).weights
    np.testing.assert_array_equal(begun, Aggregator(Training(QUESTION, 1.0, 4, 1), reached).weights)
    assert begun.any()
    for changed, said in (
        ({"training": "demo"}, "a name of its own"),
        ({"model": "svm"}, "a logistic model"),
    ):
        with pytest.raises(ArgumentError, match=said):
            start_of(reached, replace(more, **changed))
    reached.write_bytes(b"{}")
    with pytest.raises(FileError, match="cannot be read"):
        start_of(reached, more)


def test_a_folder_with_another_split_of_the_records_is_refused(tmp_path: Path) -> None:
    records = synthetic(20, D, 0.5, 0.5, seed=1)
    first, _ = split_off_test(records, seed=0)
    prepare_clients(tmp_path, first, 2)
    prepare_clients(tmp_path, first, 2)
    other, _ = split_off_test(records, seed=1)
    for clients, nodes in ((other, 2), (first, 4)):
        with pytest.raises(ArgumentError, match="other records than this training gives it"):
            prepare_clients(tmp_path, clients, nodes)


def test_a_folder_has_one_process_at_a_time(tmp_path: Path) -> None:
    write_records(tmp_path / RECORDS_FILE, synthetic(20, D, 0.5, 0.5, seed=1))
    settings, records = RunSettings(QUESTION, 1.0, 2, 2), synthetic(20, D, 0.5, 0.5, seed=1)
    with (
        FolderLock(tmp_path / LOCK_FILE, "The client's folder"),
        pytest.raises(FileError, match="in use by another process"),
    ):
        run_node(LocalClient(tmp_path, 1.0), Connection("127.0.0.1:1", insecure=True))
    with (
        FolderLock(tmp_path / RUN_LOCK_FILE, "The run's folder"),
        pytest.raises(FileError, match="in use by another process"),
    ):
        run_on_loopback(tmp_path, settings, records, records, 3.0, 1.0)
