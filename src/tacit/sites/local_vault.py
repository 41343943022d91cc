"""The vault of a site under local differential privacy: one client, all its records as one, behind the same socket.

The folder is that of a local client: records, residual, ledger, plans and certificate are the same, and ``tacit
verify`` checks them alike. What is asked follows from the terms that the site has agreed to. A question says which
round, and brings the weights; it can change nothing else.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError
from tacit.federated.accounts import certify
from tacit.federated.client import LEDGER_FILE, LOCK_FILE, LocalClient
from tacit.federated.client import RefusalError as ClientRefusalError
from tacit.federated.data import FederatedData
from tacit.federated.folder_lock import FolderLock
from tacit.federated.local_ledger import check_notes, read_lines
from tacit.federated.own_records import make_client
from tacit.federated.protocol import ProtocolError
from tacit.sites.messages import MessageError, RefusalError, Shapes, longest, read_message, write_message
from tacit.sites.reserving import note_budget, reserve_client
from tacit.sites.terms import TERMS_FILE, Terms
from tacit.sites.vault import Site, never_raising, read_site, write_site


def create_local_site(
    folder: Path,
    terms: Terms,
    records: FederatedData,
    site: Site,
    *,
    epsilon: float,
    source: str | None = None,
) -> None:
    """Make the folder of a site that is one local client: terms, records and description.

    ``epsilon`` is all that the site is ready to spend; what the terms ask for must not be more. Where the data that
    ``source`` names has a budget (``tacit budget``), it is reserved there. If something fails, nothing is left behind.
    """
    assert terms.local is not None
    cost = terms.question(1).plan().exact_epsilon()
    if not cost <= epsilon:
        raise ArgumentError(f"These terms cost a site ε = {cost:.6g}, above the budget of {epsilon:g}.")
    if site.unit is not None:
        raise ArgumentError("A local site protects all its records as one; leave --unit out.")
    make_client(folder, records, terms.schema)
    try:
        terms.write(folder / TERMS_FILE)
        if source is not None and note_budget(folder, source) is not None:
            reserve_client(folder, terms.local.epsilon)
        write_site(folder, terms, site)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class LocalVault:
    """A site under local differential privacy that is open. ``respond`` is all that the outside world may call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.terms, site = read_site(folder)
        assert self.terms.local is not None
        self._lock = FolderLock(folder / LOCK_FILE, "The site's folder")
        self._budget = float(self.terms.local.epsilon)
        self._client = LocalClient(
            folder, self._budget, witness=None if site.witness is None else Path(site.witness)
        )
        if (folder / LEDGER_FILE).exists():
            check_notes(folder / LEDGER_FILE, self._client.witness)
        self._shapes: Shapes = {"weights": (self.terms.question(1).d,)}

    @property
    def longest(self) -> int:
        """Bytes of the longest question that is read."""
        return longest(self._shapes)

    def respond(self, payload: bytes) -> bytes:
        """The reply to a question: an answer that was paid for, public facts, or a refusal. Never an exception."""
        return never_raising(self._respond, payload)

    def facts(self) -> dict[str, Any]:
        """What the site says of itself: public numbers of its terms, and how many answers it has charged."""
        path = self.folder / LEDGER_FILE
        return {
            "training": self.terms.digest,
            "member": "",
            "epsilon": self._budget,
            "answers": self.terms.training.rounds,
            "charged": len(read_lines(path)[0]) if path.exists() else 0,
        }

    def close(self) -> None:
        """Write the certificate of what was spent, if anything was, and let go of the folder."""
        try:
            certify(self.folder, self._budget)
        finally:
            self._lock.release()

    def _respond(self, payload: bytes) -> bytes:
        if len(payload) > self.longest:
            raise MessageError("The question is longer than any that this site answers.")
        content, tensors = read_message(payload, lambda _: self._shapes)
        if content == {"kind": "facts"} and not tensors:
            return write_message({"kind": "facts", **self.facts()})
        if content.get("kind") != "round" or set(content) != {"kind", "training", "round"} or not tensors:
            raise MessageError("A question asks for the facts of a site, or for a round of its training.")
        if content["training"] != self.terms.digest:
            raise RefusalError(
                "The question is for a training with other terms than this site has agreed to."
            )
        number = content["round"]
        if type(number) is not int:
            raise MessageError(f"A round must be a whole number from 1 to {self.terms.training.rounds}.")
        try:
            reply = self._client.answer(self.terms.question(number), tensors["weights"].numpy())
        except (ProtocolError, ClientRefusalError) as error:
            raise MessageError(str(error)) from error
        return write_message({"kind": "answer", **asdict(reply)})
