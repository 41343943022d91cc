from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from tacit.federated.perturbation import BOUNDED_PERTURBATIONS, Piecewise
from tacit.federated.protocol import (
    STEP,
    ProtocolError,
    Question,
    Reply,
    check_reply,
    check_weights,
    read_question,
    read_reply,
    to_steps,
)
from tacit.federated.selection import PRIVATE_SELECTIONS

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
        {"solution": "flat"},
        {"solution": "full"},
        {"solution": ""},
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"clip_norm": 1e7},
        {"solution": "vector", "epsilon": 0.01},
        {"solution": "vector", "epsilon": 100.0},
        {"solution": "vector", "d": 10_000_000},
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
        {"rounds": 0},
        {"rounds": 1_000_001},
        {"round": -(2**70)},
        {"d": 10_000_001},
        {"d": 2**70},
        {"l2": 1.5},
        {"l2": math.inf},
        {"momentum": 1.5},
        {"momentum": -0.1},
        {"mu": math.nan},
        {"mu": -1e-9},
        {"mu": 1.0},
        {"top_share": math.nan},
        {"top_share": 1.0},
        {"epsilon": math.nan},
        {"epsilon": 0.0},
        {"epsilon": 5e-324},
        {"epsilon": 1e-14},
        {"epsilon": 1e-12},
        {"epsilon": 0.0399},
        {"epsilon": 72.0},
        {"epsilon": 1e300},
        {"mu": 1e-9},
        {"mu": 0.999, "epsilon": 4.0},
        {"mu": 0.9, "epsilon": 80.0},
        {"training": "demo\n"},
        {"training": "é"},
        {"training": "a" * 65},
    ],
)
def test_questions_that_are_not_allowed_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        read_question({**asdict(QUESTION), **change})


@pytest.mark.parametrize("epsilon", [0.045, 60.0])
@pytest.mark.parametrize("select", PRIVATE_SELECTIONS)
@pytest.mark.parametrize("perturb", BOUNDED_PERTURBATIONS)
def test_the_ends_of_the_range_can_be_asked_for(epsilon: float, select: str, perturb: str) -> None:
    question = replace(QUESTION, epsilon=epsilon, select=select, perturb=perturb)
    assert 0 < question.plan().answer_epsilon() < 1.2 * epsilon / 4


def test_a_refusal_names_the_range() -> None:
    with pytest.raises(ProtocolError, match=r"ε₂ of an answer must lie in \[0.01, 16\], got 2.5e-13"):
        replace(QUESTION, epsilon=1e-12, mu=0.0)
    with pytest.raises(ProtocolError, match=r"number of coordinates must lie in \[2, 10000000\]"):
        replace(QUESTION, d=10**9)


@pytest.mark.parametrize(
    "weights",
    [
        np.zeros(9, np.float32),
        np.zeros((10, 1), np.float32),
        np.zeros(10),
        np.zeros(10, np.int64),
        np.zeros(10, "S4"),
        np.full(10, np.nan, np.float32),
        np.full(10, -np.inf, np.float32),
        np.full(10, 1.1e6, np.float32),
    ],
)
def test_weights_that_a_question_cannot_have_are_refused(weights: np.ndarray) -> None:
    with pytest.raises(ProtocolError, match="weight"):
        check_weights(QUESTION, weights)


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


def test_the_digest_of_a_training_of_single_coordinates_is_that_of_earlier_versions() -> None:
    content = {
        name: value
        for name, value in asdict(QUESTION).items()
        if name not in ("round", "solution", "clip_norm")
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    assert QUESTION.digest == digest
    vector = replace(QUESTION, solution="vector")
    assert len({QUESTION.digest, vector.digest, replace(vector, clip_norm=2.0).digest}) == 3
