"""The ledger on disk: hash-chained lines, read strictly, and the head file that notices a cut.

A note beside the ledger of how far it reaches, so that a ledger that was cut is not taken for a shorter one.

The note is the digest of the last line that ``charge`` has returned for. It is written without a sync of its own:
after a power cut it may be behind, which is harmless, and it is never ahead of what was synced to the ledger.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.errors import LedgerError, check_count, check_non_negative, check_positive, check_share
from tacit.files import decode_json
from tacit.release.ledger_lines import Heads, LineDecoder, uncollected

FORMAT = "tacit-ledger"
VERSION = 1
START = "0" * 64

_PREFIX = b'{"digest":"'
_REST = len(_PREFIX) + 64 + 2


@dataclass(frozen=True, slots=True)
class Charge:
    """One release to be paid for: N(sum, (noise_multiplier * clip_norm)^2 I) on a Poisson sample.

    ``index`` is the place in the ledger, ``step`` the step of the plan that the release serves; after a loss
    the same step is charged again. ``batch_size`` is the planned divisor, ``active`` how many numbers are
    released (the active coordinates, or the rows where row norms are released), ``secure_noise`` whether the noise is
    cryptographic or, for experiments only, seeded.
    """

    index: int
    step: int
    phase: str
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    batch_size: int
    active: int
    secure_noise: bool

    def __post_init__(self) -> None:
        check_count("index", self.index, least=0)
        check_count("step", self.step, least=0)
        check_share("sampling_rate", self.sampling_rate)
        check_non_negative("noise_multiplier", self.noise_multiplier)
        check_positive("clip_norm", self.clip_norm)
        check_count("batch_size", self.batch_size)
        check_count("active", self.active, least=0)
        if not isinstance(self.phase, str) or not self.phase or not isinstance(self.secure_noise, bool):
            raise LedgerError(
                "A charge needs the name of its phase and whether its noise is secure, "
                f"got {self.phase!r} and {self.secure_noise!r}."
            )

    def record(self) -> dict[str, Any]:
        """The fields by name, as a line holds them."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_next(charge: Charge, count: int) -> None:
    """Raise unless ``charge`` is the one that comes after ``count`` others."""
    if charge.index != count:
        raise LedgerError(f"The next charge must have index {count}, got {charge.index}.")


@dataclass(frozen=True)
class Sent:
    """A note that an answer was about to leave: its ``round``, its digest, and how many charges came before."""

    round: int
    answer: str
    charges: int


@dataclass(frozen=True)
class LedgerRecord:
    """A ledger file that has been read and found sound.

    ``head`` is the digest of the last complete line, ``counts`` the number of charges up to the line with a
    digest. ``torn`` counts the incomplete lines that crashes left; ``tail`` is one that still stands at the
    end, after ``size`` bytes of complete lines. ``unended`` says that the last of these lacks its newline. ``about`` is
    the digest of the description that the run was started with; ledgers of version 0.1 have none. ``newest`` counts the
    charges at the end that were written at once. ``sent`` is the last answer that left, where others ask for answers.
    """

    run: str
    plan: str
    charges: tuple[Charge, ...]
    counts: Mapping[str, int]
    head: str
    torn: int
    tail: bytes
    size: int
    unended: bool
    about: str = ""
    newest: int = 0
    sent: Sent | None = None


@dataclass(frozen=True)
class Chain:
    """The lines of a chained file, each with its digest; ``tail``, ``size`` and ``unended`` as in ``LedgerRecord``."""

    lines: tuple[tuple[str, Mapping[str, Any]], ...]
    tail: bytes
    size: int
    unended: bool


class ChainReader:
    """The lines of a chained file, each with its digest, read one at a time; damage is refused with the line it is in.

    After the last line there are ``tail``, ``size`` and ``unended``, as in ``LedgerRecord``. ``what`` is what messages
    call the file, ``decode`` what reads a line.
    """

    def __init__(
        self, path: Path, what: str = "ledger", decode: Callable[[bytes], Any] = decode_json
    ) -> None:
        self._path, self._what, self._decode = path, what, decode
        self.tail, self.size, self.unended = b"", 0, False

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        head, number = START, 0
        for line in self._lines():
            number += 1
            head, record = self._read_line(line, head, number)
            yield head, record
        if not number:
            raise LedgerError(
                f"The {self._what} {self._path} has no complete header, so nothing was ever charged to it: delete it "
                "and start again."
            )

    def _read_line(self, line: bytes, previous: str, number: int) -> tuple[str, Mapping[str, Any]]:
        what, path = self._what, self._path
        if not _is_whole(line):
            raise LedgerError(
                f"Line {number} of the {what} {path} is damaged: its digest does not fit its content."
            )
        try:
            record = self._decode(line)
        except ValueError as error:
            raise LedgerError(f"Line {number} of the {what} {path} is not JSON: {error}.") from error
        if record.get("previous") != previous:
            raise LedgerError(
                f"Line {number} of the {what} {path} does not follow the line before it: a line is missing, was "
                "added or is in the wrong place."
            )
        return line[len(_PREFIX) : _REST - 2].decode(), record

    def _lines(self) -> Iterator[bytes]:
        """The complete lines, without their newlines."""
        try:
            with self._path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        self.size += len(line)
                        yield line[:-1]
                    elif _is_whole(line):
                        self.unended, self.size = True, self.size + len(line)
                        yield line
                    elif _is_whole(line[:-1]):
                        raise LedgerError(
                            f"The last line of the {self._what} {self._path} is damaged: it does not end with a "
                            "newline."
                        )
                    else:
                        self.tail = line
        except OSError as error:
            raise LedgerError(f"The {self._what} {self._path} cannot be read: {error.strerror}.") from error


def read_chain(path: Path, what: str = "ledger") -> Chain:
    """All lines of a chained file, the first one at least."""
    reader = ChainReader(path, what)
    lines = tuple(reader)
    return Chain(lines, reader.tail, reader.size, reader.unended)


@uncollected()
def read_ledger(path: str | Path) -> LedgerRecord:
    """Read and verify a ledger without locking or changing it. Damage is refused with the line it is in."""
    path = Path(path)
    chain = ChainReader(path, decode=LineDecoder())
    lines = iter(chain)
    head, record = next(lines)
    header = _check_header(record, path)
    charges: list[Charge] = []
    counts = Heads({head: 0})
    torn = since = 0
    sent: Sent | None = None
    for number, (head, record) in enumerate(lines, start=2):
        if "charge" in record:
            since = record.get("since", len(charges))
            if type(since) is not int or not 0 <= since <= len(charges):
                raise LedgerError(
                    f"Line {number} of the ledger {path} was written with charges that are none."
                )
            charges.append(_read_charge(record["charge"], len(charges), number, path))
        elif "sent" in record:
            sent = _read_sent(record["sent"], sent, len(charges), number, path)
        elif "torn" in record:
            torn += 1
        else:
            raise LedgerError(f"Line {number} of the ledger {path} is neither a charge nor a note.")
        counts.add(head, len(charges))
    return LedgerRecord(
        header["run"],
        header["plan"],
        tuple(charges),
        counts,
        head,
        torn + bool(chain.tail),
        chain.tail,
        chain.size,
        chain.unended,
        header.get("about", ""),
        len(charges) - since,
        sent,
    )


def _is_whole(line: bytes) -> bool:
    digest = hashlib.sha256(line[_REST:]).hexdigest()
    return line.startswith(_PREFIX) and line[len(_PREFIX) : _REST] == digest.encode() + b'",'


def _check_header(record: Mapping[str, Any], path: Path) -> Mapping[str, str]:
    header = record.get("header")
    if not isinstance(header, Mapping) or header.get("format") != FORMAT:
        raise LedgerError(f"{path} is not a Tacit ledger.")
    if header.get("version") != VERSION:
        raise LedgerError(
            f"The ledger {path} has version {header.get('version')!r}; this Tacit reads {VERSION}."
        )
    if not all(isinstance(header.get(name), str) for name in ("run", "plan")):
        raise LedgerError(f"The header of the ledger {path} names no run or no plan.")
    if not isinstance(header.get("about", ""), str):
        raise LedgerError(f"The header of the ledger {path} has no digest of its run, but something else.")
    return header


_FIELDS = frozenset(field.name for field in fields(Charge))


def _read_charge(record: Any, index: int, number: int, path: Path) -> Charge:
    try:
        if not isinstance(record, dict) or record.keys() != _FIELDS:
            raise ValueError(f"it must have the fields {sorted(_FIELDS)}")
        charge = Charge(**record)
        check_next(charge, index)
    except (LedgerError, TypeError, ValueError) as error:
        raise LedgerError(f"Line {number} of the ledger {path} holds no valid charge: {error}.") from error
    return charge


def _read_sent(record: Any, before: Sent | None, charges: int, number: int, path: Path) -> Sent:
    if (
        not isinstance(record, Mapping)
        or record.keys() != {"round", "answer"}
        or type(record["round"]) is not int
        or not isinstance(record["answer"], str)
    ):
        raise LedgerError(f"Line {number} of the ledger {path} does not say which answer was sent.")
    sent = Sent(record["round"], record["answer"], charges)
    check_sent(sent, before)
    return sent


def check_sent(sent: Sent, before: Sent | None) -> None:
    """Raise unless an answer may leave after the one ``before``: each has a charge and a later round of its own."""
    last = Sent(0, "", 0) if before is None else before
    if sent.round <= last.round or sent.charges <= last.charges:
        raise LedgerError(
            f"Round {last.round} was sent after {last.charges} charges, so round {sent.round} cannot be sent after "
            f"{sent.charges}: every answer has a charge of its own, and rounds only grow."
        )


def ledger_line(content: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    """The line that holds ``content`` after the line with digest ``previous``, and its own digest."""
    record = {**content, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), "previous": previous}
    rest = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()[1:]
    digest = hashlib.sha256(rest).hexdigest()
    return _PREFIX + digest.encode() + b'",' + rest + b"\n", digest


def head_file(ledger: Path) -> Path:
    """Where the note of a ledger is."""
    return ledger.with_suffix(".head")


def note_head(ledger: Path, digest: str) -> None:
    """Note the last line of a ledger, in place."""
    try:
        descriptor = os.open(head_file(ledger), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, f"{digest}\n".encode(), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LedgerError(
            f"{head_file(ledger)} cannot be written: {error.strerror}. Nothing was released; resume the run once the "
            "disk is well."
        ) from error


def check_head(ledger: Path, record: LedgerRecord) -> None:
    """Refuse a ledger that lacks the line which was noted last; without a note there is nothing to compare."""
    path = head_file(ledger)
    try:
        noted = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}.") from error
    if not noted and not record.charges:  # the process ended between making the first note and writing it
        return
    if noted.decode("ascii", errors="replace").strip() not in record.counts:
        raise LedgerError(
            f"The ledger {ledger} does not reach as far as {path.name} says: it was cut, rewritten or put back from a "
            "backup, or one of the two is damaged. Releases may be missing from it, so no true epsilon can be stated "
            "and the run cannot continue: start a new run, and add its epsilon to what this one had promised."
        )
