"""The ClientApp: one client that answers questions, and a guard that lets nothing else out.

`node` runs it for the files and the budget that it was started with. ``app``, which the bundle names, is what a
plain SuperNode would load: it has no files and refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from tacit.federated.client import LocalClient, RefusalError
from tacit.federated.flower.logs import show_log
from tacit.federated.protocol import ProtocolError, read_question, read_reply

log = logging.getLogger("tacit.federated")

REFUSED = 100
BAD_QUESTION = 101
FAILED = 102


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let an answer of the right form through; turn everything else into an error without content.

    A refusal and a bad question are explained to the server; of any other failure it learns only that there
    was one, because the text of an exception may hold private values.
    """
    try:
        reply = call_next(message, context)
        if reply.has_error() or set(reply.content) != {"answer"}:
            raise ProtocolError("The client made no answer.")
        read_reply(dict(reply.content.config_records["answer"]))
        return reply
    except RefusalError as error:
        log.warning("refused: %s", error)
        return Message(Error(REFUSED, str(error)), reply_to=message)
    except ProtocolError as error:
        log.warning("question not understood: %s", error)
        return Message(Error(BAD_QUESTION, str(error)), reply_to=message)
    except Exception as error:
        log.error("failed with %s; nothing was sent", type(error).__name__)
        return Message(Error(FAILED, "The client failed; nothing was sent."), reply_to=message)


def make_app(find_client: Callable[[Context], LocalClient]) -> ClientApp:
    """Return the ClientApp that answers for the client that ``find_client`` names."""
    made = ClientApp(mods=[guard])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        """Answer one question from the client's own files."""
        show_log()
        content = message.content
        if set(content) != {"question", "weights"} or set(content.array_records["weights"]) != {"weights"}:
            raise ProtocolError("A message must hold a question and the weights, and nothing else.")
        question = read_question(dict(content.config_records["question"]))
        weights = content.array_records["weights"]["weights"].numpy()
        reply = find_client(context).answer(question, weights)
        return Message(RecordDict({"answer": ConfigRecord(asdict(reply))}), reply_to=message)

    return made


def _no_client(_: Context) -> LocalClient:
    raise RefusalError("This node runs apps that a server sends; start it with tacit fed node instead.")


app = make_app(_no_client)
