from __future__ import annotations

import hashlib
import io
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
from tacit.federated.client import LEDGER_FILE, RECORDS_FILE, LocalClient, write_records
from tacit.federated.data import synthetic
from tacit.federated.flower.bundle import bundle_digest, project_file
from tacit.federated.flower.client_app import BAD_QUESTION, FAILED, REFUSED, app, guard, make_app
from tacit.federated.flower.node import WRONG_APP, Connection, answer, run_node
from tacit.federated.flower.server_app import FedSelStrategy
from tacit.federated.local_ledger import LocalLedger
from tacit.federated.protocol import Question, Reply, read_reply
from tacit.federated.server import Aggregator, Training

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
    """Stands for Flower's grid: knows which nodes are connected."""

    def __init__(self, *nodes: int) -> None:
        self._nodes = nodes

    def get_node_ids(self) -> tuple[int, ...]:
        return self._nodes


def test_the_strategy_uses_good_answers_and_rejects_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = Aggregator(Training(QUESTION, 1.0, 4))
    strategy = FedSelStrategy(aggregator, nodes=4, patience=0.1)
    arrays, config = ArrayRecord(), ConfigRecord()
    messages = list(strategy.configure_train(1, arrays, config, Nodes(1, 2, 3, 4)))  # type: ignore[arg-type]
    assert [message.metadata.dst_node_id for message in messages] == [1, 2, 3, 4]
    good = asdict(Reply("demo", 1, 2, 1 << 20))
    stale = asdict(replace(Reply("demo", 1, 2, 1 << 20), round=3))
    weights, metrics = strategy.aggregate_train(
        1,
        [
            replied(1, good),
            replied(2, stale),
            replied(3, Error(REFUSED, "budget")),
            replied(9, good),
            replied(1, good),
        ],
    )
    assert metrics is not None
    assert metrics["answers"] == 1
    assert weights is not None
    np.testing.assert_allclose(weights["weights"].numpy(), [0, 0, -0.25, 0, 0, 0])
    for reason in ("for round 3", "budget", "no answer to a question", "answered this round already"):
        assert reason in caplog.text
    assert aggregator.question.round == 2


def test_the_strategy_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedSelStrategy(Aggregator(Training(QUESTION, 1.0, 4)), nodes=4, patience=0.1)
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), Nodes(5)))  # type: ignore[arg-type]
    assert len(messages) == 1
