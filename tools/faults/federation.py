"""Federations to be harmed: folders of sites and a coordinator, vaults in processes of their own, and an onlooker."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tacit.data import Category, Number, Schema, Target
from tacit.data.records import read_records
from tacit.errors import TacitError
from tacit.release.ledger_file import read_ledger
from tacit.release.noise import SecureNoise
from tacit.sites.coordinator import Coordinator, RoundError
from tacit.sites.masks import make_key
from tacit.sites.options import Training
from tacit.sites.serving import serve
from tacit.sites.terms import TERMS_FILE, Terms
from tacit.sites.vault import Site, create_site, secure_sum_of
from tacit.sites.wire import WireError, ask

ROUNDS, SPARE, EPSILON, FEWEST = 4, 2, 4.0, 2
OWN, SUM, FEWER = "own", "sum", "fewer"
NAMES = {OWN: ("north", "south"), SUM: ("north", "south"), FEWER: ("east", "north", "south")}
"""The sites of a federation with noise of their own, in a secure sum, and in one that two of three are enough for."""
FINISHED, EARLY, REFUSED = "finished", "stopped with a reason", "refused, mended, finished"
ENDINGS = (FINISHED, REFUSED, EARLY)
_SECONDS = 60.0


class ServerKilled(BaseException):
    """The coordinator ends here, as by kill -9: nothing of it is cleaned up."""


@dataclass
class Federation:
    """The folders of one case, the vaults that run, and what an onlooker has seen."""

    place: Path
    names: tuple[str, ...]
    vaults: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    clock: dict[str, float] = field(default_factory=dict)

    def socket(self, name: str) -> Path:
        """Where a vault listens."""
        return self.place / f"{name}.sock"

    def start(self, name: str) -> None:
        """Start a vault in a process of its own and wait until it listens; raise if it refuses."""
        self.socket(name).unlink(missing_ok=True)
        child = os.fork()
        if not child:
            _serve(
                self.place / name, self.socket(name), self.place / f"{name}.draws", self.clock.get(name, 0.0)
            )
        deadline = time.monotonic() + _SECONDS
        while not self.socket(name).exists():
            if os.waitpid(child, os.WNOHANG)[0]:
                raise TacitError(f"the vault of {name} refuses to start")
            if time.monotonic() > deadline:
                raise TimeoutError(name)
            time.sleep(0.01)
        self.vaults[name] = child

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a vault."""
        child = self.vaults.pop(name, None)
        if child is not None:
            os.kill(child, number)
            os.waitpid(child, 0)

    def kill(self, name: str) -> None:
        """End a vault as a power cut would."""
        self.kills[name] += 1
        self.end(name, signal.SIGKILL)

    def ask(self, name: str, payload: bytes) -> bytes | None:
        """Ask a vault; keep what it says."""
        self.asked.append((name, payload))
        try:
            reply = ask(self.socket(name), payload, _SECONDS)
        except WireError:
            return None
        said = about(reply)
        if said.get("kind") == "answer":
            self.seen.setdefault((name, int(str(said["round"]))), set()).add(reply)
        return reply

    def coordinator(self, exchange: Callable[[Mapping[str, bytes]], Mapping[str, bytes]]) -> Coordinator:
        """A coordinator of the folder."""
        return Coordinator(self.place / "coordinator", list(self.names), exchange, learning_rate=0.1)

    def plainly(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """An exchange without faults."""
        found = {name: self.ask(name, payload) for name, payload in questions.items()}
        return {name: reply for name, reply in found.items() if reply is not None}


Fault = Callable[[Federation, random.Random], str]


def about(reply: bytes) -> dict[str, object]:
    """The line of a reply, whatever tensors it has."""
    size = int.from_bytes(reply[:8], "little")
    header = json.loads(reply[8 : 8 + size])
    found: dict[str, object] = json.loads(header["__metadata__"]["message"])
    return found


def _serve(folder: Path, socket: Path, draws: Path, ahead: float) -> None:
    """What a vault's process does, with a note of every draw; never returns."""

    class Noted(SecureNoise):
        def begin(self, index: int) -> None:
            with draws.open("a") as file:
                file.write(f"{index}\n")
                file.flush()
                os.fsync(file.fileno())
            super().begin(index)

    code = 1
    with contextlib.suppress(BaseException):
        import tacit.training.answering as answering

        answering.SecureNoise = Noted  # type: ignore[misc]
        answering.LOOKED_AT = 2  # what the look before the first answer finds is not what is tried here
        if ahead:
            now = time.time
            time.time = lambda: now() + ahead
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        serve(folder, socket)
        code = 0
    os._exit(code)


def through(federation: Federation, step: Callable[[str, bytes, int], bytes | None]) -> str:
    """Train with an exchange in which ``step`` asks each site; a coordinator that is killed is started again."""
    count = 0

    def exchange(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        nonlocal count
        found = {}
        for name, payload in questions.items():
            count += 1
            reply = step(name, payload, count)
            if reply is not None:
                found[name] = reply
        return found

    for _ in range(12):
        try:
            federation.coordinator(exchange).run()
            return FINISHED
        except ServerKilled:
            continue
        except RoundError as error:
            last = str(error)
            if not any(said in last for said in ("answers where", "does not answer", "do not answer")):
                raise
            if any(charged(federation, name) == ROUNDS + SPARE for name in federation.names):
                return EARLY  # an answer was lost, and its site has none left to give
    return EARLY


def charged(federation: Federation, name: str) -> int:
    """How many answers a site has paid for."""
    return len(read_ledger(federation.place / name / "ledger.jsonl").charges)


def make(place: Path) -> Path:
    """Folders of sites and a coordinator, to be copied for every case; the name of the place says of which kind."""
    kind = place.name
    schema = Schema(
        Target("ill", "binary", ("no", "yes")), {"age": Number(18, 90), "ward": Category(("A", "B"))}
    )
    terms = Terms(Training(rounds=ROUNDS, spare=SPARE, sampling_rate=0.5), schema)
    if kind != OWN:
        members = tuple((name, make_key(place / f"{name}.key")) for name in NAMES[kind])
        fewest = FEWEST if kind == FEWER else None
        sums = secure_sum_of(terms.training, members, EPSILON, 1e-5, fewest=fewest)
        terms = Terms(terms.training, schema, sums)
    terms.write(place / "coordinator" / TERMS_FILE)
    for seed, name in enumerate(NAMES[kind]):
        rng = random.Random(seed)
        with (place / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["age", "ward", "ill"])
            for _ in range(120):
                age = rng.randint(18, 90)
                out.writerow([age, rng.choice("AB"), "yes" if age + rng.gauss(0, 9) > 54 else "no"])
        key = None if kind == OWN else place / f"{name}.key"
        create_site(
            place / name,
            terms,
            read_records(place / f"{name}.csv", schema),
            Site(witness=str(place.parent / f"{place.name}-witness-{name}")),
            epsilon=EPSILON,
            delta=1e-5,
            key=key,
        )
    return place


@contextlib.contextmanager
def opened(template: Path, place: Path) -> Iterator[Federation]:
    """A copy of the folders with its vaults running; all are ended at the end."""
    names = NAMES[template.name]
    for name in names:
        witness = template.parent / f"{template.name}-witness-{name}"
        kept = Path(f"{witness}.kept")
        if not kept.exists():
            shutil.copy(witness, kept)
        shutil.copy(kept, witness)
    shutil.copytree(template, place)
    federation = Federation(place, names)
    try:
        for name in names:
            federation.start(name)
        yield federation
    finally:
        for name in list(federation.vaults):
            federation.end(name)
