from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tacit.errors import FileError
from tacit.federated.protocol import STEP, ProtocolError, Question, Reply
from tacit.federated.server import Aggregator, Training

QUESTION = Question("demo", 1, 3, 5, "logistic", 1e-4, "ps", "pm", 3.0, 0.1, 0.2, 0.1)
TRAINING = Training(QUESTION, learning_rate=2.0, batch=4)


def reply(coordinate: int, value: float, number: int = 1) -> dict[str, object]:
    return asdict(Reply("demo", number, coordinate, round(value / STEP)))


def test_sparse_sum_over_the_planned_batch() -> None:
    server = Aggregator(TRAINING)
    for node, (coordinate, value) in enumerate([(1, 1.5), (1, -0.5), (3, 2.0)]):
        assert server.take(str(node), reply(coordinate, value))
    assert server.take("3", reply(-1, 0.0))
    np.testing.assert_allclose(server.finish_round(), [0, -0.5, 0, -1.0, 0])
    assert server.question.round == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (reply(1, 1.0, number=2), "for round 2"),
        (reply(5, 1.0), "coordinate 5"),
        (reply(1, 1e9), "outside"),
        ({"training": "demo", "round": 1, "coordinate": 1}, "steps"),
        ({**reply(1, 1.0), "steps": 1.5}, "type int"),
    ],
)
def test_bad_replies_are_rejected_with_a_log_line(
    content: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Aggregator(TRAINING)
    with caplog.at_level(logging.WARNING, "tacit.federated"):
        assert not server.take("7", content)
    assert "node 7 rejected" in caplog.text
    assert reason in caplog.text
    assert (server.accepted, server.rejected) == (0, 1)
    with pytest.raises(ProtocolError, match="round 1 has 0 answers; 1 are needed"):
        server.finish_round()
    np.testing.assert_array_equal(server.weights, np.zeros(5))
    assert server.question.round == 1


def test_a_node_counts_once_per_round() -> None:
    server = Aggregator(TRAINING)
    assert server.take("1", reply(0, 1.0))
    assert not server.take("1", reply(0, 1.0))
    np.testing.assert_allclose(server.finish_round(), [-0.5, 0, 0, 0, 0])
    assert not server.take("1", reply(0, 1.0, number=1))
    assert server.take("1", reply(0, 1.0, number=2))


def test_a_restart_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    server = Aggregator(TRAINING, path)
    server.take("1", reply(0, 1.0))
    weights = server.finish_round()
    server.take("1", reply(0, 1.0, number=2))  # lost with the process
    again = Aggregator(TRAINING, path)
    np.testing.assert_array_equal(again.weights, weights)
    assert again.question.round == 2
    assert again.accepted == 1
    for number in (2, 3):
        again.take("1", reply(0, 1.0, number=number))
        again.finish_round()
    assert again.done
    assert Aggregator(TRAINING, path).done


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    server = Aggregator(TRAINING, path)
    server.take("1", reply(0, 1.0))
    server.finish_round()
    with pytest.raises(FileError, match="another training"):
        Aggregator(Training(replace(QUESTION, epsilon=1.0), 2.0, 4), path)
    path.write_bytes(b"broken")
    with pytest.raises(FileError, match="cannot be read"):
        Aggregator(TRAINING, path)


def test_a_round_without_quorum_does_not_count_and_is_asked_again() -> None:
    server = Aggregator(replace(TRAINING, quorum=2))
    server.ask(3)
    assert server.take("1", reply(0, 1.0))
    assert not server.has_quorum
    with pytest.raises(ProtocolError, match="1 answers; 2 are needed"):
        server.finish_round()
    assert (server.finished, server.accepted, server.question.round) == (0, 0, 1)
    server.ask(2)
    assert not server.has_quorum
    assert server.take("1", reply(0, 1.0))
    assert server.take("2", reply(1, 1.0))
    np.testing.assert_allclose(server.finish_round(), [-0.5, -0.5, 0, 0, 0])
    assert (server.finished, server.accepted, server.asked) == (1, 2, 3)


def test_a_node_that_comes_back_under_another_name_counts_once() -> None:
    server = Aggregator(replace(TRAINING, quorum=2))
    server.ask(1)
    assert server.take("before", reply(0, 1.0))
    server.ask(1)
    assert server.take("after", reply(0, 1.0))
    assert not server.has_quorum


def test_a_checkpoint_that_does_not_say_how_many_were_asked_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    metadata = {
        "question": json.dumps(asdict(QUESTION)),
        "digest": QUESTION.digest,
        "counts": json.dumps({"finished": 2, "accepted": 5, "rejected": 1}),
    }
    path.write_bytes(save({"weights": np.ones(5, np.float32)}, metadata=metadata))
    server = Aggregator(TRAINING, path)
    assert (server.finished, server.accepted, server.asked) == (2, 5, 5)


def test_vector_replies_are_added_up_as_the_vectors_that_they_stand_for() -> None:
    question = replace(QUESTION, solution="vector", clip_norm=0.5)
    server = Aggregator(Training(question, learning_rate=2.0, batch=4))
    mechanism = question.plan().vector_replies()
    assert server.take("1", asdict(Reply("demo", 1, 3, 77)))
    assert server.take("2", asdict(Reply("demo", 1, 255, 2**53 - 1)))
    for index, seed in ((-1, 77), (256, 77), (3, -1), (3, 2**53)):
        assert not server.take("3", asdict(Reply("demo", 1, index, seed)))
    expected = -0.5 * (mechanism.value(77, 3) + mechanism.value(2**53 - 1, 255))
    np.testing.assert_allclose(server.finish_round(), expected, rtol=1e-5)
