"""``run.json``: what a run was started with, fixed before its first release and bound by its ledger's first line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import FileError
from tacit.files import json_text, read_json

FORMAT = "tacit-run-1"


@dataclass(frozen=True)
class Description:
    """What a run was started with. ``model`` is a digest of the layout of its trainable parameters.

    ``unit`` and ``not_covered`` are words that its certificate has to use, ``witness`` is where its witness lies,
    ``isolation`` is how examples were kept apart, ``coordinates`` the number of trainable coordinates. Version 0.1
    wrote none of the five.
    """

    run: str
    seed: int | None
    model: str
    unit: str | None = None
    not_covered: tuple[str, ...] | None = None
    witness: str | None = None
    isolation: str | None = None
    coordinates: int | None = None

    @property
    def text(self) -> str:
        """The file."""
        return json_text({"format": FORMAT, **vars(self)})

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def load_description(path: Path) -> Description:
    """Read the description of a run."""
    record = read_json(path)
    refused = FileError(f"{path} is not from this version of Tacit, or was edited.")
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise refused
    seed, listed = record.get("seed"), record.get("not_covered")
    texts = [record.get(name) for name in ("run", "model")]
    optional = [record.get(name) for name in ("unit", "witness", "isolation")]
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(text is None or isinstance(text, str) for text in optional)
        or not (seed is None or (isinstance(seed, int) and not isinstance(seed, bool)))
        or not (record.get("coordinates") is None or type(record.get("coordinates")) is int)
        or not (
            listed is None or (isinstance(listed, list) and all(isinstance(item, str) for item in listed))
        )
    ):
        raise refused
    return Description(
        run=record["run"],
        seed=seed,
        model=record["model"],
        unit=record.get("unit"),
        not_covered=None if listed is None else tuple(listed),
        witness=record.get("witness"),
        isolation=record.get("isolation"),
        coordinates=record.get("coordinates"),
    )
