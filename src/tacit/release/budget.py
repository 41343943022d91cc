"""The budget of a data set on disk: every run reserves what it may cost before it starts.

A text file that only grows, of chained lines as a ledger has them, with a note of its last line beside it. The first
line states the budget. A line ``reserve`` is a run that was let in, with what its plan can cost at most. A line
``settle`` replaces that by what the run's own ledger has charged, once it is finished. A line ``cover`` adds a place at
which the same data lies.

A reservation that nobody settles stays: a run that was killed, lost or deleted counts in full. Reading, deciding and
writing happen under one lock, so of two processes that both would just fit, one is refused. An incomplete last line was
never acted upon, because a run begins only after its line is on disk.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tacit.errors import NO_FILE_LOCKS, ArgumentError, LedgerError, TacitError, is_number
from tacit.plan.accountants import Spend
from tacit.plan.budgets import ASIDE_SHARE, Cost, Filter, together
from tacit.release.ledger_file import START, head_file, ledger_line, note_head, read_chain

try:
    import fcntl
except ImportError as error:
    raise LedgerError(NO_FILE_LOCKS) from error

FORMAT = "tacit-budget"
VERSION = 1
_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Place:
    """Where the data of a budget lies: a path or name, and a keyed digest of its content with the key's name."""

    source: str
    digest: str = ""
    key: str = ""


@dataclass(frozen=True)
class Entry:
    """One run: ``reserved`` is what it was let in with, ``charged`` what it counts for instead, if anything.

    ``settled``: that is what it has cost by its ledger, and nothing more was reserved for it since.
    """

    number: str
    what: str
    place: str
    at: str
    reserved: Cost
    charged: Cost | None = None
    settled: bool = False

    @property
    def cost(self) -> Cost:
        """What counts."""
        return self.reserved if self.charged is None else self.charged


@dataclass(frozen=True)
class BudgetRecord:
    """A budget file that has been read and found sound."""

    path: Path
    name: str
    epsilon: float
    delta: float
    unit: str | None
    created: str
    places: tuple[Place, ...]
    entries: tuple[Entry, ...]
    digests: frozenset[str]
    head: str
    tail: bytes
    size: int
    unended: bool

    @property
    def filter(self) -> Filter:
        """The rule by which runs are let in."""
        return Filter(self.epsilon, self.delta)

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What every run counts for, in order; runs that cost nothing are left out."""
        return tuple(entry.cost for entry in self.entries if entry.cost != Cost())

    @property
    def used(self) -> float:
        """The share of the budget that is used."""
        share = self.filter.used(self.costs)
        first = self._first
        return max(share, 1.0) if first is not None and self.filter.used([first]) > 1 else share

    @property
    def _first(self) -> Cost | None:
        return next((entry.reserved for entry in self.entries if entry.cost != Cost()), None)

    def admits(self, cost: Cost, *, instead_of: str | None = None) -> bool:
        """Whether a run of this cost may begin, in place of what the entry ``instead_of`` counts for."""
        others = tuple(e for e in self.entries if e.number != instead_of and e.cost != Cost())
        earlier = next((e.reserved for e in self.entries if e.cost != Cost() or e.number == instead_of), cost)
        first = cost if not others else earlier
        known = None if instead_of is None else self.entry(instead_of)
        if known is not None and known.cost != Cost() and not _covers(known.reserved, cost):
            # More than it was let in with, decided on after its first results: only the filter covers that.
            return (
                self.filter.used((*(entry.cost for entry in others), cost)) <= 1 >= self.filter.used([first])
            )
        return self.filter.admits((*(entry.cost for entry in others), cost), first)

    def entry(self, number: str) -> Entry | None:
        """The entry of that number."""
        return next((entry for entry in self.entries if entry.number == number), None)


def read_budget(path: str | Path) -> BudgetRecord:
    """Read and verify a budget; damage, and a file that does not reach as far as its note says, are refused."""
    path = Path(path)
    chain = read_chain(path, "budget")
    digests = [digest for digest, _ in chain.lines]
    header = _header(chain.lines[0][1], path)
    places = [header["place"]]
    entries: dict[str, Entry] = {}
    for number, (_, line) in enumerate(chain.lines[1:], start=2):
        try:
            _apply(line, entries, places)
        except (KeyError, TypeError, ValueError, TacitError) as error:
            raise LedgerError(
                f"Line {number} of the budget {path} holds nothing that a budget has: {error}."
            ) from error
    _check_note(path, digests)
    return BudgetRecord(
        path=path,
        name=header["name"],
        epsilon=header["epsilon"],
        delta=header["delta"],
        unit=header["unit"],
        created=str(chain.lines[0][1].get("at", "")),
        places=tuple(places),
        entries=tuple(entries.values()),
        digests=frozenset(digests),
        head=digests[-1],
        tail=chain.tail,
        size=chain.size,
        unended=chain.unended,
    )


def create_budget(
    path: Path, *, name: str, epsilon: float, delta: float, unit: str | None, place: Place
) -> BudgetRecord:
    """Start a budget; refuse a path that exists, because a budget is never overwritten."""
    Filter(epsilon, delta)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "epsilon": float(epsilon),
        "delta": float(delta),
        "unit": unit,
        "place": vars(place),
    }
    line, digest = ledger_line({"header": header}, START)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write(descriptor, line, path)
            if head_file(path).exists() and not path.exists():
                raise LedgerError(
                    f"{head_file(path)} is there without {path}: a budget of this name is lost. Bring it back, or give "
                    "the new one another name."
                )
            os.link(temporary, path)
            note_head(path, digest)
        finally:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
    except FileExistsError as error:
        raise LedgerError(f"The budget {path} exists already; a budget is never started again.") from error
    except OSError as error:
        raise LedgerError(f"The budget {path} cannot be made: {error.strerror}.") from error
    return read_budget(path)


def reserve(path: Path, cost: Cost, *, what: str, place: str, number: str | None = None) -> str:
    """Let a run in, or raise; its number, once the reservation is on disk.

    With ``number`` the run is known already, and counts for ``cost`` from now on if it counted for less.
    """
    with _held(path) as (descriptor, record):
        known = None if number is None else record.entry(number)
        if known is not None and _covers(known.cost, cost):
            return known.number
        if known is not None:  # what it counts for already took place, or may still
            cost = _most(known.cost, cost)
        if not record.admits(cost, instead_of=number):
            raise LedgerError(_refusal(record, cost, number))
        chosen = number or uuid.uuid4().hex
        about = {"number": chosen, "what": what, "place": place, **_cost_record(cost)}
        _append(descriptor, record, {"reserve": about})
        return chosen


def settle(path: Path, number: str, cost: Cost) -> None:
    """Let a run count for what it has cost, whatever it had reserved."""
    with _held(path) as (descriptor, record):
        known = record.entry(number)
        if known is None:
            raise LedgerError(f"The budget {path} knows no run {number!r}; it was cut, or is another one.")
        if known.settled and not _covers(cost, known.cost):
            raise LedgerError(
                f"The run {known.what} at {known.place} was counted for more already, so its ledger was put back from "
                f"a backup, or is that of a copy; the budget {path} keeps what it knows."
            )
        if known.charged != cost:
            _append(descriptor, record, {"settle": {"number": number, **_cost_record(cost)}})


def count_run(path: Path, number: str, cost: Cost, *, what: str, place: str) -> None:
    """Add a run that took place already: it counts even if it does not fit."""
    with _held(path) as (descriptor, record):
        if record.entry(number) is None:
            about = {"number": number, "what": what, "place": place, **_cost_record(cost)}
            _append(descriptor, record, {"reserve": about})


def cover(path: Path, place: Place) -> None:
    """Let a budget also count for data at another place."""
    with _held(path) as (descriptor, record):
        if place not in record.places:
            _append(descriptor, record, {"cover": vars(place)})


def cost_of(spends: Sequence[Spend], aside: float = 0.0, pure: Sequence[float] = ()) -> Cost:
    """The cost of a run, in the one order in which costs are compared."""
    return together([Cost(tuple(spends), aside, tuple(pure))])


def _covers(counted: Cost, cost: Cost) -> bool:
    """Whether what is counted for is at least as much of everything."""
    known = {(s.sampling_rate, s.noise_multiplier): s.steps for s in counted.spends}
    return (
        counted.aside >= cost.aside
        and all(known.get((s.sampling_rate, s.noise_multiplier), 0) >= s.steps for s in cost.spends)
        and all(one >= other for one, other in zip_longest(counted.pure, cost.pure, fillvalue=0.0))
    )


def _most(one: Cost, other: Cost) -> Cost:
    """The least cost that covers both."""
    steps: dict[tuple[float, float], int] = {}
    for spend in (*one.spends, *other.spends):
        key = spend.sampling_rate, spend.noise_multiplier
        steps[key] = max(steps.get(key, 0), spend.steps)
    pure = [max(pair) for pair in zip_longest(one.pure, other.pure, fillvalue=0.0)]
    return cost_of([Spend(*key, count) for key, count in steps.items()], max(one.aside, other.aside), pure)


def _refusal(record: BudgetRecord, cost: Cost, number: str | None) -> str:
    others = [entry.cost for entry in record.entries if entry.number != number and entry.cost != Cost()]
    needed = record.filter.used([cost])
    promise = f"ε = {record.epsilon:g}, δ = {record.delta:g} per {record.unit or 'row'}"
    if math.isinf(needed):
        return (
            f"The budget {record.name!r} ({promise}) does not let this run in: it adds no noise, or next to none, and "
            "costs more than any budget."
        )
    aside = sum(one.aside for one in (*others, cost))
    if aside > ASIDE_SHARE * record.delta:
        return (
            f"The budget {record.name!r} ({promise}) does not let this run in: its δ has no room for measuring "
            "categories once more. Declare the columns in a schema, or say --statistics rows."
        )
    return (
        f"The budget {record.name!r} ({promise}) does not let this run in: {_percent(record.filter.used(others))} are "
        f"used, and the run would need {_percent(needed)}. Ask for a smaller --epsilon, for "
        f"--delta {record.delta:g} if the run's is larger, or for fewer runs."
    )


def _percent(share: float) -> str:
    """A share, rounded up: what is stated as used is never less than it is."""
    return "all" if share > 10 else f"{math.ceil(1000 * share) / 10:g} %"


def _apply(line: Mapping[str, Any], entries: dict[str, Entry], places: list[Place]) -> None:
    if "reserve" in line:
        about = line["reserve"]
        number, what, place = (_text(about[name]) for name in ("number", "what", "place"))
        cost = _read_cost(about)
        before = entries.get(number)
        # A run that was let in again was let in with no less than before.
        reserved = cost if before is None else _most(before.reserved, cost)
        charged = None if before is None else _most(before.cost, cost)
        entries[number] = Entry(number, what, place, str(line.get("at", "")), reserved, charged)
    elif "settle" in line:
        number = _text(line["settle"]["number"])
        entries[number] = replace(entries[number], charged=_read_cost(line["settle"]), settled=True)
    elif "cover" in line:
        places.append(_read_place(line["cover"]))
    elif "torn" not in line:
        raise ValueError("it is neither a run nor a note")


def _cost_record(cost: Cost) -> dict[str, Any]:
    rows = [[spend.sampling_rate, spend.noise_multiplier, spend.steps] for spend in cost.spends]
    return {"spends": rows, "aside": cost.aside, **({"pure": list(cost.pure)} if cost.pure else {})}


def _read_cost(record: Mapping[str, Any]) -> Cost:
    pure = record.get("pure", [])
    if not isinstance(record["spends"], list) or not is_number(record["aside"]) or not isinstance(pure, list):
        raise ValueError("its cost is none")
    spends = [Spend(rate, noise, steps) for rate, noise, steps in record["spends"]]
    return cost_of(spends, record["aside"], pure)


def _read_place(record: Mapping[str, Any]) -> Place:
    if set(record) != {"source", "digest", "key"}:
        raise ValueError("its place is none")
    return Place(*(_text(record[name]) for name in ("source", "digest", "key")))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no text")
    return value


def _header(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    header = record.get("header")
    if not isinstance(header, Mapping) or header.get("format") != FORMAT:
        raise LedgerError(f"{path} is not a budget of Tacit.")
    if header.get("version") != VERSION:
        raise LedgerError(
            f"The budget {path} has version {header.get('version')!r}; this Tacit reads {VERSION}."
        )
    try:
        unit = header["unit"]
        if not (unit is None or isinstance(unit, str)):
            raise ValueError("its unit is none")
        epsilon, delta = header["epsilon"], header["delta"]
        Filter(epsilon, delta)
        return {
            "name": _text(header["name"]),
            "epsilon": float(epsilon),
            "delta": float(delta),
            "unit": unit,
            "place": _read_place(header["place"]),
        }
    except (KeyError, TypeError, ValueError, ArgumentError) as error:
        raise LedgerError(f"The first line of the budget {path} states no budget: {error}.") from error


def _check_note(path: Path, digests: Sequence[str]) -> None:
    note = head_file(path)
    try:
        noted = note.read_bytes().decode("ascii", errors="replace").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{note} cannot be read: {error.strerror}.") from error
    if noted not in digests:
        raise LedgerError(
            f"The budget {path} does not reach as far as {note.name} says: it was cut, rewritten or put back from a "
            "backup, or one of the two is damaged. Runs may be missing from it, so nothing more is let in: bring back "
            "the newest copy of both."
        )


@contextlib.contextmanager
def _held(path: Path) -> Iterator[tuple[int, BudgetRecord]]:
    """The budget, read and mended under a lock that no other process has meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError as error:
        raise LedgerError(f"The budget {path} cannot be opened: {error.strerror}.") from error
    try:
        _lock(descriptor, path)
        record = read_budget(path)
        if record.unended:
            _write(descriptor, b"\n", path)
            record = read_budget(path)
        if record.tail:
            os.ftruncate(descriptor, record.size)
            note = {"torn": {"bytes": len(record.tail), "start": record.tail[:200].hex()}}
            _append(descriptor, record, note)
            record = read_budget(path)
        yield descriptor, record
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if time.monotonic() > end:
                raise LedgerError(
                    f"The budget {path} has been in use by another process for {_WAIT_SECONDS:g} seconds; stop it, and "
                    "try again."
                ) from error
            time.sleep(0.05)


def _append(descriptor: int, record: BudgetRecord, content: Mapping[str, Any]) -> None:
    line, digest = ledger_line(content, record.head)
    _write(descriptor, line, record.path)
    note_head(record.path, digest)


def _write(descriptor: int, line: bytes, path: Path) -> None:
    """Append ``line`` and return once the disk has it."""
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
        os.fsync(descriptor)
    except OSError as error:
        raise LedgerError(
            f"The budget {path} cannot be written: {error.strerror}. Nothing was started."
        ) from error
