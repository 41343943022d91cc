"""How questions reach sites: by their local sockets, or within this process for experiments."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tacit.sites.local_vault import LocalVault
from tacit.sites.vault import Vault
from tacit.sites.wire import WireError, ask

log = logging.getLogger("tacit.sites")


class Sockets:
    """Sites whose vaults listen on this machine, all asked at once; one that does not answer is left out."""

    def __init__(self, paths: Mapping[str, Path], seconds: float = 120.0) -> None:
        self._paths, self._seconds = dict(paths), seconds

    def __call__(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """The replies that come."""

        def one(name: str) -> tuple[str, bytes | None]:
            try:
                return name, ask(self._paths[name], questions[name], self._seconds)
            except WireError as error:
                log.warning("%s: %s", name, error)
                return name, None

        with ThreadPoolExecutor(len(questions) or 1) as pool:
            return {name: reply for name, reply in pool.map(one, questions) if reply is not None}


class InProcess:
    """Sites that are open in this process."""

    def __init__(self, vaults: Mapping[str, Vault | LocalVault]) -> None:
        self._vaults = dict(vaults)

    def __call__(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """The replies."""
        return {name: self._vaults[name].respond(question) for name, question in questions.items()}
