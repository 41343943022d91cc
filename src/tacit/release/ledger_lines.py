"""The lines of long ledgers: read without decoding each as JSON, and remembered in a few bytes each."""

from __future__ import annotations

import gc
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tacit.files import decode_json

_DIGEST = 32
_NUMBER = rb"(0|[1-9][0-9]{0,17})"
# Without backslashes every quote ends or begins a word, so what looks like a field is one.
_PLAIN = rb"[^{}\\]*"
_CHARGE = re.compile(
    rb'\{"digest":"[0-9a-f]{64}","at":"[0-9T:.+-]{1,40}","charge":\{('
    + _PLAIN
    + rb'"index":)'
    + _NUMBER
    + rb"(,"
    + _PLAIN
    + rb'"step":)'
    + _NUMBER
    + rb'\},"previous":"([0-9a-f]{64})"(?:,"since":'
    + _NUMBER
    + rb")?\}"
)


class LineDecoder:
    """Decodes lines as ``decode_json`` does, but those of charges that differ in their numbers only once.

    A line that equals one decoded before, but for the digits of its index, its step and the charges written with it,
    has the same structure. Of such a line only what a ledger is read for is given: charge, previous and since.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], Mapping[str, Any]] = {}

    def __call__(self, line: bytes) -> Any:
        """The record of a line; a ``ValueError`` if it is not strict JSON."""
        found = _CHARGE.fullmatch(line)
        if found is None:
            return decode_json(line)
        before, index, between, step, previous, since = found.groups()
        known = self._known.get((before, between))
        if known is None:
            record = decode_json(line)
            charge = record["charge"]
            if charge.get("index") == int(index) and charge.get("step") == int(step):
                self._known[before, between] = charge
            return record
        place = int(index)
        charge = {**known, "index": place, "step": place if step == index else int(step)}
        record = {"charge": charge, "previous": previous.decode()}
        if since is not None:
            record["since"] = int(since)
        return record


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: for many objects that stay, which it would look through again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Heads(Mapping[str, int]):
    """How many charges a ledger had at each of its lines, by the digest of the line: 40 bytes for each.

    A look-up reads through all of them, from the end: a run asks for a few, and mostly for late ones.
    """

    def __init__(self, heads: Mapping[str, int] | None = None) -> None:
        self._digests = bytearray()
        self._counts = array("q")
        if isinstance(heads, Heads):
            self._digests[:], self._counts = heads._digests, heads._counts[:]
        else:
            for head, count in (heads or {}).items():
                self.add(head, count)

    def add(self, head: str, count: int) -> None:
        """Note the digest of the next line."""
        digest = bytes.fromhex(head)
        assert len(digest) == _DIGEST
        self._digests += digest
        self._counts.append(count)

    def __getitem__(self, head: str) -> int:
        try:
            digest = bytes.fromhex(head)
        except ValueError:
            raise KeyError(head) from None
        if len(digest) != _DIGEST or digest.hex() != head:
            raise KeyError(head)
        at = self._digests.rfind(digest)
        while at >= 0 and at % _DIGEST:
            at = self._digests.rfind(digest, 0, at + _DIGEST - 1)
        if at < 0:
            raise KeyError(head)
        return self._counts[at // _DIGEST]

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self._digests), _DIGEST):
            yield self._digests[at : at + _DIGEST].hex()

    def __len__(self) -> int:
        return len(self._counts)
