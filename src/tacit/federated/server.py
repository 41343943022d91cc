"""The server's side: checks answers, adds them up sparsely, remembers where it was.

It sees indices and perturbed values only, and trusts neither their form nor their order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tacit.errors import ArgumentError, FileError, check_count, check_positive
from tacit.federated.protocol import (
    ProtocolError,
    Question,
    Reply,
    check_reply,
    check_weights,
    read_question,
    read_reply,
)
from tacit.federated.sampling import BOTTOM
from tacit.federated.vector import VectorReplies
from tacit.files import decode_json, write_bytes

log = logging.getLogger("tacit.federated")


@dataclass(frozen=True)
class Training:
    """A training: the question that is asked every round (``question.round`` is the next), and the update.

    A round counts once ``quorum`` nodes have answered it.
    """

    question: Question
    learning_rate: float
    batch: int
    quorum: int = 1

    def __post_init__(self) -> None:
        check_positive("learning rate", self.learning_rate)
        check_count("batch", self.batch)
        check_count("quorum", self.quorum)


class Aggregator:
    """Takes the replies of one round after the other and keeps the weights.

    With a ``checkpoint`` the weights and the number of finished rounds are on disk after every round, and a
    new aggregator continues from there. A training starts at zero, or at the weights that another one has reached,
    whose checkpoint is ``start``.
    """

    def __init__(self, training: Training, checkpoint: Path | None = None, start: Path | None = None) -> None:
        self.training = training
        self.weights = np.zeros(training.question.d, np.float32)
        self.finished = 0
        self.accepted = 0
        self.rejected = 0
        self.asked = 0
        self._asked_now = 0
        self._checkpoint = checkpoint
        self._replies: dict[str, Reply] = {}
        self._mechanism = training.question.plan().reply_mechanism()
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)
        elif start is not None:
            self.weights = start_of(start, training.question)

    @property
    def question(self) -> Question:
        """The question of the round that is open."""
        return replace(self.training.question, round=self.finished + 1)

    @property
    def done(self) -> bool:
        """Whether every round is finished."""
        return self.finished >= self.training.question.rounds

    @property
    def has_quorum(self) -> bool:
        """Whether enough nodes have answered the open round."""
        return len(self._replies) >= self.training.quorum

    def ask(self, nodes: int) -> None:
        """Begin to ask ``nodes`` nodes for the open round, for the first time or again.

        Answers to an earlier asking of the round are dropped: who gave one repeats it free of charge, and a node
        that came back under another name would count twice.
        """
        self._replies = {}
        self._asked_now = max(self._asked_now, nodes)

    def take(self, node: str, content: Mapping[str, Any]) -> bool:
        """Take the reply of ``node`` if it is a possible answer to the open question; else log why not."""
        try:
            reply = read_reply(content)
            check_reply(reply, self.question, self._mechanism)
            if node in self._replies:
                raise ProtocolError("the node has answered this round already")
        except ProtocolError as error:
            self.reject(node, str(error))
            return False
        self._replies[node] = reply
        return True

    def reject(self, node: str, reason: str) -> None:
        """Count and log a reply that is not used."""
        self.rejected += 1
        log.warning("round %d: reply of node %s rejected: %s", self.finished + 1, node, reason)

    def finish_round(self) -> NDArray[np.float32]:
        """Subtract α × sum of replies / planned batch size, write the checkpoint and return the weights."""
        if not self.has_quorum:
            raise ProtocolError(
                f"round {self.finished + 1} has {len(self._replies)} answers; {self.training.quorum} are needed"
            )
        total = np.zeros(self.training.question.d)
        for reply in self._replies.values():
            if isinstance(self._mechanism, VectorReplies):
                total += self._mechanism.value(reply.steps, reply.coordinate)
            elif reply.coordinate != BOTTOM:
                total[reply.coordinate] += reply.value
        step = self.training.learning_rate * total / self.training.batch
        self.weights = (self.weights - step).astype(np.float32)
        self.finished += 1
        self.accepted += len(self._replies)
        self.asked += self._asked_now
        self._replies, self._asked_now = {}, 0
        if self._checkpoint is not None:
            self._save(self._checkpoint)
        return self.weights

    def _save(self, path: Path) -> None:
        counts = {name: getattr(self, name) for name in ("finished", "accepted", "rejected", "asked")}
        metadata = {
            "question": json.dumps(asdict(self.training.question)),
            "digest": self.training.question.digest,
            "counts": json.dumps(counts),
        }
        write_bytes(path, save({"weights": self.weights}, metadata=metadata))

    def _resume(self, path: Path) -> None:
        weights, metadata = _read(path)
        try:
            counts = decode_json(metadata["counts"])
            finished, accepted, rejected = (int(counts[n]) for n in ("finished", "accepted", "rejected"))
            # Checkpoints before version 0.2 do not say how many were asked.
            asked = int(counts.get("asked", accepted))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"The checkpoint {path} cannot be read.") from error
        if metadata.get("digest") != self.training.question.digest or weights.shape != self.weights.shape:
            raise FileError(f"The checkpoint {path} belongs to another training; use another folder or name.")
        self.weights, self.finished, self.asked = weights, finished, asked
        self.accepted, self.rejected = accepted, rejected


def default_rate(solution: str) -> float:
    """The learning rate of a server that says none."""
    return 0.1 if solution == "vector" else 1.0


def trained(path: Path) -> Question:
    """The question of the training whose checkpoint this is."""
    _, metadata = _read(path)
    try:
        return read_question(decode_json(metadata["question"]))
    except (KeyError, TypeError, ValueError, ProtocolError) as error:
        raise FileError(f"The checkpoint {path} cannot be read.") from error


def start_of(path: Path, question: Question) -> NDArray[np.float32]:
    """The weights in the checkpoint of an earlier training, for one that goes on from them with ``question``."""
    before = trained(path)
    if before.training == question.training:
        raise ArgumentError(
            f"A training that extends {before.training!r} needs a name of its own: clients answer a round of a "
            "training once."
        )
    if (before.d, before.model) != (question.d, question.model):
        raise ArgumentError(
            f"{before.training!r} has trained {before.d} numbers of a {before.model} model, not {question.d} of a "
            f"{question.model} model."
        )
    weights, _ = _read(path)
    check_weights(question, weights)
    return weights


def rounds_done(path: Path) -> int:
    """How many rounds of a training a checkpoint holds."""
    _, metadata = _read(path)
    try:
        return int(decode_json(metadata["counts"])["finished"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"The checkpoint {path} cannot be read.") from error


def _read(path: Path) -> tuple[NDArray[np.float32], dict[str, str]]:
    try:
        with safe_open(path, framework="numpy") as file:
            weights: NDArray[np.float32] = file.get_tensor("weights")
            return weights, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise FileError(f"The checkpoint {path} cannot be read.") from error
