"""The ServerApp of a coordinator: rounds with sites that are reached through Flower."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from tacit.errors import TacitError
from tacit.federated.flower.logs import show_log
from tacit.federated.flower.server_app import APP_LOCK_FILE, exchange
from tacit.federated.folder_lock import FolderLock
from tacit.files import write_json
from tacit.runs.layout import RESULT_FILE
from tacit.sites.coordinator import Progress
from tacit.sites.local_coordinator import coordinator_of
from tacit.sites.messages import write_message

log = logging.getLogger("tacit.federated")

_SECONDS_BETWEEN_LOOKS = 0.2


class GridSites:
    """Sites behind the nodes of a grid. A relay says which site it stands for; a node that is gone is looked for again.

    ``patience`` is how long to wait for a site to connect, ``seconds`` for its reply.
    """

    def __init__(self, grid: Grid, seconds: float, patience: float) -> None:
        self._grid, self._seconds, self._patience = grid, seconds, patience
        self._nodes: dict[str, int] = {}
        self._away: set[str] = set()

    def __call__(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """The replies that come."""
        self._find(set(questions))
        wanted = {self._nodes[name]: payload for name, payload in questions.items() if name in self._nodes}
        return {
            name: reply
            for name, reply in self._ask(wanted).items()
            if name in questions and name in self._nodes
        }

    def _find(self, names: set[str]) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            connected = set(self._grid.get_node_ids())
            self._nodes = {name: node for name, node in self._nodes.items() if node in connected}
            if unknown := connected - set(self._nodes.values()):
                self._ask(dict.fromkeys(sorted(unknown), write_message({"kind": "facts"})))
            missing = names - set(self._nodes)
            if missing <= self._away or time.monotonic() > deadline:
                self._away = missing  # waited for once; found if it comes back, not waited for again
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _ask(self, questions: Mapping[int, bytes]) -> dict[str, bytes]:
        messages = [
            Message(
                RecordDict({"question": ConfigRecord({"payload": payload})}),
                node,
                MessageType.TRAIN,
                group_id="1",
            )
            for node, payload in questions.items()
        ]
        found: dict[str, bytes] = {}
        replies = exchange(self._grid, messages, self._seconds)
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            node = reply.metadata.src_node_id
            if reply.has_error():
                log.warning("node %s: %s", node, (reply.error.reason or "")[:200])
                continue
            record: Mapping[str, Any] = reply.content.config_records.get("reply") or {}
            site, payload = record.get("site"), record.get("payload")
            if not isinstance(site, str) or not isinstance(payload, bytes):
                log.warning("node %s: it is no reply of a relay", node)
            elif self._nodes.setdefault(site, node) == node:
                found[site] = payload
            else:
                log.warning("node %s: another node stands for %s", node, site)
        return found


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left."""
    run_training(grid, context.run_config)


def run_training(grid: Grid, config: Mapping[str, Any]) -> None:
    """Run the rounds that are left of the training in the folder that ``config`` names."""
    show_log()
    folder = Path(config["folder"])
    quorum, rate = int(config["quorum"]), float(config["learning-rate"])

    def tell(progress: Progress) -> None:
        log.info("round %d of %d: %d answers", progress.round, progress.rounds, progress.answered)

    with FolderLock(folder / APP_LOCK_FILE, "The coordinator's folder"):
        try:
            coordinator = coordinator_of(folder)(
                folder,
                str(config["sites"]).split(","),
                GridSites(grid, float(config["round-timeout"]), float(config["patience"])),
                quorum=quorum or None,
                learning_rate=rate or None,
            )
        except TacitError as error:
            write_json(folder / RESULT_FILE, {"finished": False, "stopped because": str(error), "rounds": 0})
            raise
        coordinator.run(tell)
