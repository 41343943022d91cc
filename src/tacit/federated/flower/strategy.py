"""A Flower strategy that asks one question per round and adds up sparse answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from tacit.federated.server import Aggregator

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
