"""Virtual nodes: the apps of a training in one process, with files and ledgers of every client and without a network.

Flower's own engine hands every message to a pool of processes, which takes longer than the answer itself. Here a
question becomes bytes, is read as a node would read it, and is answered at once; so does its reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageBytes
from flwr.supercore.task_identity import TaskIdentity

_RUN = _TASK = _SERVER = 1
_FIRST_NODE = 2
AT_ONCE = 16
"""Clients that answer at once: most of an answer is waiting until its charge is on disk."""


class VirtualNodes:
    """So many nodes of ``app``, which finds its client by ``partition-id``: 0, 1, …

    They stand where a server has Flower's grid. A message is answered when its reply is asked for.
    """

    def __init__(self, app: ClientApp, count: int) -> None:
        self._app, self._count = app, count
        self._waiting: dict[str, bytes] = {}
        self._sent = 0
        # Flower sets these in the processes that it starts; a message cannot be made without them.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = _RUN, _TASK, _SERVER

    def get_node_ids(self) -> list[int]:
        """Every node, always connected."""
        return list(range(_FIRST_NODE, _FIRST_NODE + self._count))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages; return a name for each, by which its reply is asked for."""
        names = []
        for message in messages:
            self._sent += 1
            name = str(self._sent)
            packed = message_to_proto(message)
            packed.metadata.message_id = name
            self._waiting[name] = packed.SerializeToString()
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Answer the messages of these names that were not answered yet; replies come in their order."""
        waiting = [self._waiting.pop(name) for name in message_ids if name in self._waiting]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from map(_read, pool.map(self._answer, waiting))

    def _answer(self, payload: bytes) -> bytes:
        message = _read(payload)
        node = message.metadata.dst_node_id
        context = Context(_RUN, node, {"partition-id": node - _FIRST_NODE}, RecordDict(), {})
        reply: bytes = message_to_proto(self._app(message, context)).SerializeToString()
        return reply


def _read(payload: bytes) -> Message:
    return message_from_proto(MessageBytes.FromString(payload))
