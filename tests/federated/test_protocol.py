from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from tacit.federated.perturbation import Piecewise
from tacit.federated.protocol import (
    STEP,
    ProtocolError,
    Question,
    Reply,
    check_reply,
    read_question,
    read_reply,
    to_steps,
)

QUESTION = Question("demo", 2, 4, 10, "logistic", 1e-4, "ps", "pm", 4.0, 0.1, 0.2, 0.1)


def test_a_question_survives_the_wire() -> None:
    assert read_question(asdict(QUESTION)) == QUESTION


def test_a_question_costs_epsilon_over_rounds() -> None:
    assert QUESTION.plan().exact_epsilon() == pytest.approx(4.0)
    assert QUESTION.plan().epsilon_per_epoch == pytest.approx(1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 2},
        {"training": "../../etc/passwd"},
        {"training": ""},
        {"round": 0},
        {"round": 5},
        {"select": "topk"},
        {"perturb": "none"},
        {"perturb": "laplace"},
        {"model": "forest"},
        {"l2": -1.0},
        {"l2": math.nan},
        {"epsilon": math.inf},
        {"epsilon": -1.0},
        {"mu": 1.5},
        {"top_share": 0.0},
        {"momentum": math.nan},
        {"d": 1},
        {"d": "10"},
        {"d": True},
        {"epsilon": 4},
        {"extra": 1},
    ],
)
def test_questions_that_are_not_allowed_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        read_question({**asdict(QUESTION), **change})


def test_a_missing_entry_is_refused() -> None:
    content = asdict(QUESTION)
    del content["mu"]
    with pytest.raises(ProtocolError, match="mu"):
        read_question(content)


def test_the_digest_is_the_same_in_every_round_only() -> None:
    assert replace(QUESTION, round=3).digest == QUESTION.digest
    assert replace(QUESTION, epsilon=5.0).digest != QUESTION.digest


BOUND = Piecewise(0.9).bound


@pytest.mark.parametrize(
    "reply",
    [
        Reply("other", 2, 0, 0),
        Reply("demo", 1, 0, 0),
        Reply("demo", 3, 0, 0),
        Reply("demo", 2, 10, 0),
        Reply("demo", 2, -2, 0),
        Reply("demo", 2, -1, 5),
        Reply("demo", 2, 0, to_steps(BOUND) + 1),
        Reply("demo", 2, 0, -to_steps(BOUND) - 1),
    ],
)
def test_impossible_replies_are_refused(reply: Reply) -> None:
    with pytest.raises(ProtocolError):
        check_reply(reply, QUESTION, Piecewise(0.9))


@pytest.mark.parametrize("reply", [Reply("demo", 2, 9, to_steps(BOUND)), Reply("demo", 2, -1, 0)])
def test_possible_replies_pass(reply: Reply) -> None:
    check_reply(reply, QUESTION, Piecewise(0.9))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"training": "demo", "round": 2, "coordinate": 1},
        {"training": "demo", "round": 2, "coordinate": 1, "steps": 0.5},
        {"training": "demo", "round": 2, "coordinate": [1], "steps": 1},
        {"training": "demo", "round": True, "coordinate": 1, "steps": 1},
        {"training": "demo", "round": 2, "coordinate": 1, "steps": 1, "gradient": 3.0},
    ],
)
def test_malformed_replies_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        read_reply(content)


def test_values_are_whole_steps() -> None:
    assert to_steps(0.3) * STEP == pytest.approx(0.3, abs=STEP / 2)
    assert Reply("demo", 1, 0, to_steps(-1.25)).value == -1.25
