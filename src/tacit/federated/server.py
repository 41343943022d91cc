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

from tacit.errors import FileError, check_count, check_positive
from tacit.federated.protocol import ProtocolError, Question, Reply, check_reply, read_reply
from tacit.federated.sampling import BOTTOM
from tacit.files import decode_json, write_bytes

log = logging.getLogger("tacit.federated")


@dataclass(frozen=True)
class Training:
    """A training: the question that is asked every round (``question.round`` is the next), and the update."""

    question: Question
    learning_rate: float
    batch: int

    def __post_init__(self) -> None:
        check_positive("learning rate", self.learning_rate)
        check_count("batch", self.batch)


class Aggregator:
    """Takes the replies of one round after the other and keeps the weights.

    With a ``checkpoint`` the weights and the number of finished rounds are on disk after every round, and a
    new aggregator continues from there.
    """

    def __init__(self, training: Training, checkpoint: Path | None = None) -> None:
        self.training = training
        self.weights = np.zeros(training.question.d, np.float32)
        self.finished = 0
        self.accepted = 0
        self.rejected = 0
        self._checkpoint = checkpoint
        self._replies: dict[str, Reply] = {}
        self._perturbation = training.question.plan().value_perturbation()
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)

    @property
    def question(self) -> Question:
        """The question of the round that is open."""
        return replace(self.training.question, round=self.finished + 1)

    @property
    def done(self) -> bool:
        """Whether every round is finished."""
        return self.finished >= self.training.question.rounds

    def take(self, node: str, content: Mapping[str, Any]) -> bool:
        """Take the reply of ``node`` if it is a possible answer to the open question; else log why not."""
        try:
            reply = read_reply(content)
            check_reply(reply, self.question, self._perturbation)
            if node in self._replies:
                raise ProtocolError("the node has answered this round already")
        except ProtocolError as error:
            self.reject(node, str(error))
            return False
        self._replies[node] = reply
        self.accepted += 1
        return True

    def reject(self, node: str, reason: str) -> None:
        """Count and log a reply that is not used."""
        self.rejected += 1
        log.warning("round %d: reply of node %s rejected: %s", self.finished + 1, node, reason)

    def finish_round(self) -> NDArray[np.float32]:
        """Subtract α × sum of replies / planned batch size, write the checkpoint and return the weights."""
        total = np.zeros(self.training.question.d)
        for reply in self._replies.values():
            if reply.coordinate != BOTTOM:
                total[reply.coordinate] += reply.value
        step = self.training.learning_rate * total / self.training.batch
        self.weights = (self.weights - step).astype(np.float32)
        self.finished += 1
        self._replies = {}
        if self._checkpoint is not None:
            self._save(self._checkpoint)
        return self.weights

    def _save(self, path: Path) -> None:
        counts = {"finished": self.finished, "accepted": self.accepted, "rejected": self.rejected}
        metadata = {
            "question": json.dumps(asdict(self.training.question)),
            "digest": self.training.question.digest,
            "counts": json.dumps(counts),
        }
        write_bytes(path, save({"weights": self.weights}, metadata=metadata))

    def _resume(self, path: Path) -> None:
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                weights: NDArray[np.float32] = file.get_tensor("weights")
            counts = decode_json(metadata["counts"])
            finished, accepted, rejected = (int(counts[n]) for n in ("finished", "accepted", "rejected"))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"The checkpoint {path} cannot be read.") from error
        if metadata.get("digest") != self.training.question.digest or weights.shape != self.weights.shape:
            raise FileError(f"The checkpoint {path} belongs to another training; use another folder or name.")
        self.weights, self.finished, self.accepted, self.rejected = weights, finished, accepted, rejected
