"""The Flower server app, and the strategy that asks clients.

The ServerApp: runs the rounds that are left of a training and writes checkpoint and result.

Everything it needs is in the run configuration (`settings`), so that starting it again continues where it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from tacit.federated.flower.bundle import QUESTION_PREFIX
from tacit.federated.flower.logs import show_log
from tacit.federated.plan import certificate
from tacit.federated.protocol import read_question
from tacit.federated.server import Aggregator, Training
from tacit.files import write_json

log = logging.getLogger("tacit.federated")


class FedSelStrategy(Strategy):
    """Ask every connected node, once ``nodes`` are there or ``patience`` seconds have passed."""

    def __init__(self, aggregator: Aggregator, nodes: int, patience: float) -> None:
        self._aggregator = aggregator
        self._nodes = nodes
        self._patience = patience
        self._asked: set[int] = set()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the question of the open round for every connected node."""
        nodes = self._connected(grid)
        self._asked = set(nodes)
        question = ConfigRecord(asdict(self._aggregator.question))
        weights = ArrayRecord({"weights": Array(self._aggregator.weights)})
        content = RecordDict({"question": question, "weights": weights})
        number = str(self._aggregator.question.round)
        return [Message(content, node, MessageType.TRAIN, group_id=number) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and add up the replies; a round with none still counts."""
        accepted = 0
        for reply in replies:
            accepted += self._take(reply)
        number = self._aggregator.question.round
        weights = self._aggregator.finish_round()
        log.info("round %d: %d of %d answers used", number, accepted, len(self._asked))
        return ArrayRecord({"weights": Array(weights)}), MetricRecord({"answers": accepted})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nothing: evaluation on clients would cost them privacy."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing: clients do not evaluate."""
        return None

    def summary(self) -> None:
        """Log what is asked of clients."""
        log.info("question: %s", self._aggregator.question)

    def _take(self, reply: Message) -> bool:
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

    def _connected(self, grid: Grid) -> list[int]:
        deadline = time.monotonic() + self._patience
        while len(nodes := sorted(grid.get_node_ids())) < self._nodes and time.monotonic() < deadline:
            time.sleep(0.2)
        return nodes


CHECKPOINT_FILE = "checkpoint.safetensors"
RESULT_FILE = "result.json"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left."""
    run_training(grid, context.run_config)


def run_training(grid: Grid, config: Mapping[str, Any]) -> None:
    """Run the rounds that are left of the training that ``config`` describes."""
    show_log()
    folder = Path(config["folder"])
    question = read_question(
        {
            name.removeprefix(QUESTION_PREFIX).replace("-", "_"): value
            for name, value in config.items()
            if name.startswith(QUESTION_PREFIX)
        }
    )
    training = Training(question, float(config["learning-rate"]), int(config["batch"]))
    aggregator = Aggregator(training, folder / CHECKPOINT_FILE)
    strategy = FedSelStrategy(aggregator, int(config["nodes"]), float(config["patience"]))
    if not aggregator.done:
        strategy.start(
            grid,
            ArrayRecord({"weights": Array(aggregator.weights)}),
            num_rounds=question.rounds - aggregator.finished,
            timeout=float(config["round-timeout"]),
        )
    write_json(
        folder / RESULT_FILE,
        {
            "training": question.training,
            "rounds": aggregator.finished,
            "answers used": aggregator.accepted,
            "replies rejected": aggregator.rejected,
            "certificate": certificate(question.plan(), "system"),
        },
    )
