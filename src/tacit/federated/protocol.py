"""What a server asks and what a client answers, as plain numbers and words, checked on both sides.

A question names the training, the round and the mechanism. Each of its numbers has a stated range, and a
question outside is refused before anything is computed. An answer is one coordinate and one value, the value
as a whole number of steps of 2⁻²⁰: what a client can send then depends on its data only through the
probabilities that the mechanism states.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError, TacitError
from tacit.federated.lattice import STEP
from tacit.federated.models import MODELS
from tacit.federated.perturbation import (
    BOUNDED_PERTURBATIONS,
    LEAST_EPSILON2,
    MOST_EPSILON2,
    Perturbation,
)
from tacit.federated.plan import LocalPlan
from tacit.federated.sampling import BOTTOM
from tacit.federated.selection import (
    LEAST_EPSILON1,
    MOST_COORDINATES,
    MOST_EPSILON1,
    PRIVATE_SELECTIONS,
)
from tacit.federated.vector import SEEDS, VectorReplies

PROTOCOL = 1

# Far beyond every honest training; within them gradients stay finite for records of ordinary size.
MOST_ROUNDS = 1_000_000
MOST_L2 = 1.0
MOST_MOMENTUM = 1.0
MOST_WEIGHT = 1e6
LEAST_CLIP_NORM = 1e-6
MOST_CLIP_NORM = 1e6

ASKED_SOLUTIONS = ("two-stage", "vector")

_TRAINING_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProtocolError(TacitError):
    """A question or an answer is not what the protocol allows."""


@dataclass(frozen=True)
class Question:
    """One client, one round: answer by this mechanism for these weights (which travel beside it)."""

    training: str
    round: int
    rounds: int
    d: int
    model: str
    l2: float
    select: str
    perturb: str
    epsilon: float
    mu: float
    top_share: float
    momentum: float
    protocol: int = PROTOCOL
    solution: str = "two-stage"
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.protocol != PROTOCOL:
            raise ProtocolError(f"The question has protocol {self.protocol!r}; this Tacit speaks {PROTOCOL}.")
        if not _TRAINING_NAME.fullmatch(self.training):
            raise ProtocolError("The name of a training must be 1 to 64 letters, digits, dots, dashes.")
        _check_range("The number of rounds", self.rounds, 1, MOST_ROUNDS)
        _check_range("The round", self.round, 1, self.rounds)
        _check_range("The number of coordinates", self.d, 2, MOST_COORDINATES)
        if self.select not in PRIVATE_SELECTIONS:
            raise ProtocolError(f"The selection {self.select!r} is not private; the client does not answer.")
        if self.perturb not in BOUNDED_PERTURBATIONS:
            raise ProtocolError(f"The perturbation {self.perturb!r} is not allowed outside of simulations.")
        if self.model not in MODELS:
            raise ProtocolError(f"There is no model {self.model!r}.")
        _check_range("l2", self.l2, 0, MOST_L2)
        _check_range("The momentum", self.momentum, 0, MOST_MOMENTUM)
        if self.solution not in ASKED_SOLUTIONS:
            raise ProtocolError(f"The solution {self.solution!r} is not allowed outside of simulations.")
        _check_range("The clip norm", self.clip_norm, LEAST_CLIP_NORM, MOST_CLIP_NORM)
        plan = self.plan()
        if self.solution == "vector":
            try:
                plan.vector_replies()
            except ArgumentError as error:
                raise ProtocolError(str(error)) from error
            return
        if plan.epsilon1:
            _check_range("The ε₁ of an answer", plan.epsilon1, LEAST_EPSILON1, MOST_EPSILON1)
        _check_range("The ε₂ of an answer", plan.epsilon2, LEAST_EPSILON2, MOST_EPSILON2)

    def plan(self) -> LocalPlan:
        """Return the plan that the question follows; every round is one answer at ε/rounds."""
        try:
            return LocalPlan(
                d=self.d,
                batch=1,
                select=self.select,
                perturb=self.perturb,
                epsilon=self.epsilon,
                epochs=self.rounds,
                mu=self.mu,
                top_share=self.top_share,
                momentum=self.momentum,
                solution=self.solution,
                clip_norm=self.clip_norm,
            )
        except ArgumentError as error:
            raise ProtocolError(f"The question holds no valid plan: {error}") from error

    @property
    def digest(self) -> str:
        """A digest of everything but the round: two questions of one training must have the same."""
        content = {name: value for name, value in asdict(self).items() if name != "round"}
        if self.solution == "two-stage":
            # As in trainings that began before there was another solution: they go on.
            del content["solution"], content["clip_norm"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_weights(question: Question, weights: NDArray[np.generic]) -> None:
    """Raise unless ``weights`` are ones that ``question`` can be asked for."""
    if weights.dtype != np.float32 or weights.shape != (question.d,):
        raise ProtocolError(f"The weights must be {question.d} numbers in single precision.")
    # Written so that a number that is none fails as well.
    if not np.all(np.abs(weights) <= MOST_WEIGHT):
        raise ProtocolError(f"Every weight must lie in ±{MOST_WEIGHT:g}.")


@dataclass(frozen=True)
class Reply:
    """The answer of one client in one round; ``coordinate`` −1 is ⊥, and then ``steps`` is 0.

    A vector reply has the index of a direction in ``coordinate`` and the seed of the list of directions in ``steps``.
    """

    training: str
    round: int
    coordinate: int
    steps: int

    @property
    def value(self) -> float:
        """The perturbed value."""
        return self.steps * STEP


def to_steps(value: float) -> int:
    """Return ``value`` as a whole number of steps, to the nearest."""
    return round(value / STEP)


def check_reply(reply: Reply, question: Question, mechanism: Perturbation | VectorReplies) -> None:
    """Raise unless ``reply`` is a possible answer to ``question``: right training and round, within range."""
    if reply.training != question.training:
        raise ProtocolError(f"it belongs to another training, {reply.training!r}")
    if reply.round != question.round:
        raise ProtocolError(f"it is for round {reply.round}, this is round {question.round}")
    if isinstance(mechanism, VectorReplies):
        if not 0 <= reply.coordinate < mechanism.directions or not 0 <= reply.steps < SEEDS:
            raise ProtocolError(f"there is no direction {reply.coordinate} with the seed {reply.steps}")
        return
    if not BOTTOM <= reply.coordinate < question.d:
        raise ProtocolError(f"coordinate {reply.coordinate} is outside 0 … {question.d - 1}")
    most = to_steps(mechanism.bound)
    if abs(reply.steps) > most or (reply.coordinate == BOTTOM and reply.steps):
        raise ProtocolError(f"its value is outside ±{mechanism.bound:.6g}")


def read_question(content: Mapping[str, Any]) -> Question:
    """Build a question from what came over the wire; refuse missing, extra and wrongly typed entries."""
    return Question(**_typed(Question, content))


def read_reply(content: Mapping[str, Any]) -> Reply:
    """Build a reply from what came over the wire; refuse missing, extra and wrongly typed entries."""
    return Reply(**_typed(Reply, content))


def _check_range(what: str, value: float, least: float, most: float) -> None:
    # A number that is none is in no range.
    if not least <= value <= most:
        raise ProtocolError(f"{what} must lie in [{least:.10g}, {most:.10g}], got {value!r}.")


def _typed(kind: type[Question] | type[Reply], content: Mapping[str, Any]) -> dict[str, Any]:
    types = {"int": int, "float": float, "str": str}
    wanted = {field.name: types[str(field.type)] for field in fields(kind)}
    if content.keys() != wanted.keys():
        odd = sorted(content.keys() ^ wanted.keys())
        raise ProtocolError(f"its entries are not those of a {kind.__name__.lower()}: {', '.join(odd)[:200]}")
    for name, expected in wanted.items():
        if type(content[name]) is not expected:
            raise ProtocolError(f"its entry {name!r} is not of type {expected.__name__}")
    return dict(content)
