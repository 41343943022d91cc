"""The ClientApp of a site: a relay between Flower and the socket of the vault. It knows no file and needs no trust.

A SuperNode runs whatever app its server sends. This is the one that ours sends; another one could do no more than this
one, as long as the SuperNode runs under a user that cannot enter the vault's folder: ask the vault, and get replies
that were paid for. ``site`` and ``socket`` stand in the SuperNode's ``--node-config``.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from tacit.sites.wire import WireError, ask

NO_VAULT = 110

app = ClientApp()


@app.train()
def relay(message: Message, context: Context) -> Message:
    """Carry one question and its reply, as bytes that nobody here looks at."""
    try:
        payload = message.content.config_records["question"]["payload"]
        site, path = context.node_config["site"], context.node_config["socket"]
        reply = ask(str(path), payload if isinstance(payload, bytes) else b"")
    except (KeyError, WireError) as error:
        return Message(Error(NO_VAULT, f"The relay reaches no vault: {error}"[:200]), reply_to=message)
    return Message(
        RecordDict({"reply": ConfigRecord({"site": str(site), "payload": reply})}), reply_to=message
    )
