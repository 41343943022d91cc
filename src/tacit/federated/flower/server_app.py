"""The Flower server app, and the rounds in which it asks clients.

The ServerApp: runs the rounds that are left of a training and writes checkpoint and result.

Everything it needs is in the run configuration (`settings`), so that starting it again continues where it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from tacit.errors import TacitError
from tacit.federated.flower.bundle import QUESTION_PREFIX
from tacit.federated.flower.logs import show_log
from tacit.federated.folder_lock import FolderLock
from tacit.federated.plan import certificate
from tacit.federated.protocol import read_question
from tacit.federated.server import Aggregator, Training
from tacit.files import write_json

log = logging.getLogger("tacit.federated")

TRIES = 3
_SECONDS_BETWEEN_PULLS = 0.2


class RoundError(TacitError):
    """A round did not get enough answers, however often it was asked."""


class Nodes(Protocol):
    """What a server needs of Flower's grid; virtual nodes have it too."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return a name for each."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to messages of these names that have come."""


def exchange(grid: Nodes, messages: list[Message], seconds: float) -> Iterator[Message]:
    """Send ``messages`` and return the replies that come in time."""
    open_ids = {identifier for identifier in grid.push_messages(messages) if identifier}
    deadline = time.monotonic() + seconds
    while open_ids and time.monotonic() < deadline:
        for reply in grid.pull_messages(open_ids):
            open_ids.discard(reply.metadata.reply_to_message_id)
            yield reply
        if open_ids:
            time.sleep(_SECONDS_BETWEEN_PULLS)


class Rounds:
    """Ask every connected node, round after round, until each round has its quorum.

    A round without quorum is asked again, up to `TRIES` times: clients that have paid for it repeat their answers
    free of charge. ``nodes`` are expected; questions wait for them, ``patience`` seconds at most.
    """

    def __init__(self, aggregator: Aggregator, nodes: int, patience: float, timeout: float) -> None:
        self._aggregator = aggregator
        self._nodes = nodes
        self._patience = patience
        self._timeout = timeout
        self._asked: set[int] = set()

    def run(self, grid: Nodes) -> None:
        """Run the rounds that are left; raise if one stays without quorum."""
        log.info("question: %s", self._aggregator.training.question)
        while not self._aggregator.done:
            self._run_round(grid)

    def questions(self, grid: Nodes) -> list[Message]:
        """Return the question of the open round for every connected node."""
        nodes = self._connected(grid)
        self._asked = set(nodes)
        self._aggregator.ask(len(nodes))
        question = ConfigRecord(asdict(self._aggregator.question))
        weights = ArrayRecord({"weights": Array(self._aggregator.weights)})
        content = RecordDict({"question": question, "weights": weights})
        number = str(self._aggregator.question.round)
        return [Message(content, node, MessageType.TRAIN, group_id=number) for node in nodes]

    def take(self, reply: Message) -> bool:
        """Take a reply if it is an answer to the open question; else log why not."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._aggregator.reject(
                str(node), f"error {reply.error.code}: {(reply.error.reason or '')[:200]}"
            )
            return False
        if node not in self._asked or set(reply.content) != {"answer"}:
            self._aggregator.reject(str(node), "it is no answer to a question of this round")
            return False
        record = reply.content.config_records.get("answer")
        return self._aggregator.take(str(node), dict(record or {}))

    def _run_round(self, grid: Nodes) -> None:
        number, accepted = self._aggregator.question.round, 0
        for attempt in range(1, TRIES + 1):
            replies = exchange(grid, self.questions(grid), self._timeout)
            accepted = sum(self.take(reply) for reply in replies)
            if self._aggregator.has_quorum:
                self._aggregator.finish_round()
                log.info("round %d: %d of %d answers used", number, accepted, len(self._asked))
                return
            log.warning("round %d: %d answers, too few; asking %d of %d", number, accepted, attempt, TRIES)
        raise RoundError(
            f"Round {number} got {accepted} answers where {self._aggregator.training.quorum} are needed, asked {TRIES} "
            "times. Start again with the same folder: answers that were paid for are repeated free of charge."
        )

    def _connected(self, grid: Nodes) -> list[int]:
        deadline = time.monotonic() + self._patience
        while len(nodes := sorted(grid.get_node_ids())) < self._nodes and time.monotonic() < deadline:
            time.sleep(0.2)
        return nodes


CHECKPOINT_FILE = "checkpoint.safetensors"
RESULT_FILE = "result.json"
APP_LOCK_FILE = "app.lock"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left."""
    run_training(grid, context.run_config)


def run_training(grid: Nodes, config: Mapping[str, Any]) -> None:
    """Run the rounds that are left of the training that ``config`` describes, and write what came of it."""
    show_log()
    folder = Path(config["folder"])
    question = read_question(
        {
            name.removeprefix(QUESTION_PREFIX).replace("-", "_"): value
            for name, value in config.items()
            if name.startswith(QUESTION_PREFIX)
        }
    )
    training = Training(question, float(config["learning-rate"]), int(config["batch"]), int(config["quorum"]))
    with FolderLock(folder / APP_LOCK_FILE, "The server's folder"):
        start = Path(config["start"]) if config["start"] else None
        aggregator = Aggregator(training, folder / CHECKPOINT_FILE, start)
        rounds = Rounds(
            aggregator, int(config["nodes"]), float(config["patience"]), float(config["round-timeout"])
        )
        reason = ""
        try:
            rounds.run(grid)
        except TacitError as error:
            reason = str(error)
            raise
        except BaseException as error:
            reason = f"The server failed with {type(error).__name__}; its log says more."
            raise
        finally:
            write_json(folder / RESULT_FILE, summary(aggregator, reason))


def summary(aggregator: Aggregator, reason: str = "") -> dict[str, Any]:
    """Return what a training came to; ``reason`` says why it stopped early."""
    question = aggregator.training.question
    finished = aggregator.done and aggregator.accepted > 0
    return {
        "training": question.training,
        "finished": finished,
        **({} if finished else {"stopped because": reason or "no answer was used"}),
        "rounds": aggregator.finished,
        "rounds planned": question.rounds,
        "quorum": aggregator.training.quorum,
        "answers asked for": aggregator.asked,
        "answers used": aggregator.accepted,
        "replies rejected": aggregator.rejected,
        "certificate": certificate(question.plan(), "system", finished=finished),
    }
