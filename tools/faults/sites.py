"""Harm a federation of sites in every way that a network knows, let it go on, and count what each site has paid.

    python -m tools.faults.sites --table docs/faults-sites.md

Two vaults in processes of their own and a coordinator train by turns with noise of their own and in a secure sum; three
where the sum goes on without one that leaves (``leaving``). A note outside the run is made of every draw of noise, and
every byte that leaves a vault is kept. After each fault no draw may be missing from a ledger, no place of a ledger may
have given noise twice, no round may have got two different answers from one site, no site may have paid for more than
its rounds and the answers that kills have lost, and every folder must verify.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.errors import TacitError
from tacit.release.ledger_file import read_ledger
from tacit.runs import verify
from tacit.sites.coordinator import RoundError
from tools.faults.federation import (
    EARLY,
    ENDINGS,
    FEWER,
    FINISHED,
    NAMES,
    OWN,
    REFUSED,
    ROUNDS,
    SPARE,
    SUM,
    Fault,
    Federation,
    ServerKilled,
    about,
    make,
    opened,
    through,
)
from tools.faults.leaving import (
    duplicates_without_a_site,
    returns_late,
    server_killed_after_void,
    site_leaves,
    unmasked,
    void_replayed,
)


def node_killed(federation: Federation, rng: random.Random) -> str:
    """A vault is killed at some moment around an answer, once to three times, and started again."""
    moments = set(rng.sample(range(3, 3 + 2 * ROUNDS), rng.randint(1, 3)))

    def step(name: str, payload: bytes, count: int) -> bytes | None:
        if count not in moments:
            return federation.ask(name, payload)
        child = os.fork()
        if not child:
            time.sleep(rng.choice((0.0, 0.002, 0.005, 0.01, 0.02, 0.05)))
            os.kill(federation.vaults[name], signal.SIGKILL)
            os._exit(0)
        reply = federation.ask(name, payload)
        os.waitpid(child, 0)
        federation.kill(name)
        federation.start(name)
        return reply

    return through(federation, step)


def server_killed(federation: Federation, rng: random.Random) -> str:
    """The coordinator is killed after a reply came or before a question went, once to three times."""
    moments = set(rng.sample(range(3, 3 + 2 * ROUNDS), rng.randint(1, 3)))
    before = rng.random() < 0.5

    def step(name: str, payload: bytes, count: int) -> bytes | None:
        if count in moments and before:
            raise ServerKilled
        reply = federation.ask(name, payload)
        if count in moments:
            raise ServerKilled
        return reply

    return through(federation, step)


def network_cut(federation: Federation, rng: random.Random) -> str:
    """Questions or replies are lost, a third of them."""
    draws = random.Random(rng.random())

    def step(name: str, payload: bytes, count: int) -> bytes | None:
        lost = draws.random() if count > 2 else 1.0
        if lost < 1 / 6:
            return None
        reply = federation.ask(name, payload)
        return None if lost < 1 / 3 else reply

    return through(federation, step)


def duplicates(federation: Federation, rng: random.Random) -> str:
    """Every question arrives two to four times, and every reply is one of them."""

    def step(name: str, payload: bytes, count: int) -> bytes | None:
        return rng.choice([federation.ask(name, payload) for _ in range(rng.randint(2, 4))])

    return through(federation, step)


def replay(federation: Federation, rng: random.Random) -> str:
    """Old questions come again between the new ones, whole or with some bytes changed."""

    def step(name: str, payload: bytes, count: int) -> bytes | None:
        reply = federation.ask(name, payload)
        _, old = rng.choice(federation.asked)
        if rng.random() < 0.5:
            place = rng.randrange(len(old))
            old = old[:place] + bytes([old[place] ^ (1 << rng.randrange(8))]) + old[place + 1 :]
        if _is_round_ahead(old, federation, name):
            return reply
        federation.ask(name, old)
        return reply

    return through(federation, step)


def _is_round_ahead(payload: bytes, federation: Federation, name: str) -> bool:
    """Whether changed bytes name a round that is still to come: a question of its own, which costs what it costs."""
    with contextlib.suppress(Exception):
        number = int(str(about(payload).get("round", 0)))
        done = max((n for site, n in federation.seen if site == name), default=0)
        return number > done
    return False


def clock_skew(federation: Federation, rng: random.Random) -> str:
    """A vault's clock is years ahead or behind, and jumps as it is started again."""
    name = rng.choice(federation.names)
    for ahead in (rng.choice((-3e8, 3e8)), rng.choice((-9e8, 9e8))):
        federation.end(name)
        federation.clock[name] = ahead
        federation.start(name)
    return through(federation, lambda site, payload, _: federation.ask(site, payload))


def site_rewound(federation: Federation, rng: random.Random) -> str:
    """A site's folder is put back from a backup in the middle; its witness tells, and the true one is put back."""
    name, moment = rng.choice(federation.names), rng.randint(3, 2 * ROUNDS)
    shutil.copytree(federation.place / name, federation.place / "backup")
    refused = False

    def step(site: str, payload: bytes, count: int) -> bytes | None:
        nonlocal refused
        reply = federation.ask(site, payload)
        if count == moment + 2:
            federation.end(name, signal.SIGKILL)
            true = federation.place / "true"
            shutil.move(federation.place / name, true)
            charged = len(read_ledger(true / "ledger.jsonl").charges)
            shutil.copytree(federation.place / "backup", federation.place / name)
            try:
                federation.start(name)
            except TacitError:
                refused = True
            if not refused and charged:
                raise AssertionError("a folder that was put back is served")
            federation.end(name)
            shutil.rmtree(federation.place / name)
            shutil.move(true, federation.place / name)
            federation.start(name)
        return reply

    ending = through(federation, step)
    return REFUSED if refused and ending == FINISHED else ending


def server_rewound(federation: Federation, rng: random.Random) -> str:
    """The coordinator's folder is put back from a backup and asks rounds again, at other weights."""
    rounds = rng.randint(1, ROUNDS - 1)
    own, backup = federation.place / "coordinator", federation.place / "coordinator-backup"
    count = 0

    def exchange(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        nonlocal count
        count += 1
        if count == 1 + rounds:
            shutil.copytree(own, backup, dirs_exist_ok=True)
        if count == 2 + rounds + 1:
            raise ServerKilled
        return federation.plainly(questions)

    with contextlib.suppress(ServerKilled):
        federation.coordinator(exchange).run()
        return FINISHED
    shutil.rmtree(own)
    shutil.move(backup, own)
    try:
        federation.coordinator(federation.plainly).run()
    except RoundError:
        return EARLY
    return FINISHED


def files_put_back(federation: Federation, rng: random.Random) -> str:
    """All files of a site but its ledger are put back together; it refuses, and the true ones are put back."""
    name, moment, refused = rng.choice(federation.names), rng.randint(1, ROUNDS - 1), False
    folder, backup = federation.place / name, federation.place / "backup"

    def step(site: str, payload: bytes, count: int) -> bytes | None:
        nonlocal refused
        reply = federation.ask(site, payload)
        number = int(str(about(payload).get("round", 0)))
        if site == name and number == moment and not backup.exists():
            shutil.copytree(folder, backup, ignore=shutil.ignore_patterns("ledger*"))
        if site == name and number == moment + 1 and not refused:
            federation.end(name, signal.SIGKILL)
            true = Path(shutil.copytree(folder, federation.place / "true"))
            shutil.copytree(backup, folder, dirs_exist_ok=True)
            try:
                federation.start(name)
            except TacitError:
                refused = True
            if not refused:
                raise AssertionError("files that were put back are served")
            shutil.rmtree(folder)
            shutil.move(true, folder)
            federation.start(name)
        return reply

    ending = through(federation, step)
    return REFUSED if refused and ending == FINISHED else ending


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how it is called, how it is inflicted, how often, in which federations by turns."""

    title: str
    inflict: Fault
    share: int
    where: tuple[str, ...] = (OWN, SUM)


KINDS = {
    "node": Kind("node killed around an answer, one to three times", node_killed, 40),
    "server": Kind("server killed, one to three times", server_killed, 20),
    "cut": Kind("network cut: a third of all messages lost", network_cut, 20),
    "duplicate": Kind("duplicate questions and replies", duplicates, 10),
    "replay": Kind("replayed and damaged questions", replay, 15),
    "clock": Kind("clock skew of years", clock_skew, 5),
    "rewind": Kind("site put back from a backup", site_rewound, 10),
    "server-rewind": Kind("coordinator put back from a backup", server_rewound, 10),
    "put-back": Kind("all files of a site but its ledger put back", files_put_back, 10),
    "leave": Kind("a site of three killed for good around its answer", site_leaves, 15, (FEWER,)),
    "leave-server": Kind(
        "the same, and the server killed in the void round or after", server_killed_after_void, 15, (FEWER,)
    ),
    "late": Kind("a site of three cut off, asked late, back again", returns_late, 10, (FEWER,)),
    "void-replay": Kind("messages of a void round replayed and changed", void_replayed, 10, (FEWER,)),
    "leave-duplicate": Kind(
        "a site of three killed for good, all messages doubled", duplicates_without_a_site, 10, (FEWER,)
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a fault; ``problems`` is empty if everything held."""

    kind: str
    ending: str
    problems: tuple[str, ...]
    paid: int = 0
    drawn: int = 0
    lost: int = 0


def check(federation: Federation, kind: str, ending: str) -> Outcome:
    """Count what happened without trusting the sites."""
    problems, paid, drawn, lost = [], 0, 0, 0
    for name in federation.names:
        folder, note = federation.place / name, federation.place / f"{name}.draws"
        charges = len(read_ledger(folder / "ledger.jsonl").charges)
        draws = [int(line) for line in note.read_text().split()] if note.exists() else []
        answered = {number for site, number in federation.seen if site == name}
        paid, drawn = paid + charges, drawn + len(draws)
        lost += charges - len(answered)
        if len(set(draws)) != len(draws):
            problems.append(f"{name}: a place of the ledger gave noise twice")
        if not set(draws) <= set(range(charges)):
            problems.append(f"{name}: under-reported: noise was drawn that the ledger does not hold")
        if any(len(replies) > 1 for (site, _), replies in federation.seen.items() if site == name):
            problems.append(f"{name}: two different answers to one round")
        if not len(answered) <= charges <= min(ROUNDS + SPARE, len(answered) + federation.kills[name]):
            problems.append(
                f"{name}: paid {charges} for {len(answered)} rounds and {federation.kills[name]} kills"
            )
        if charges:
            verdict = verify(folder)
            if not (verdict.agrees and verdict.for_release):
                problems.append(
                    f"{name}: does not verify: {'; '.join(verdict.problems) or 'not for release'}"
                )
    if federation.names == NAMES[FEWER]:
        problems += unmasked(federation)
    if ending == EARLY and kind not in ("node", "server-rewind"):
        problems.append("the training did not finish")
    return Outcome(kind, ending, tuple(problems), paid, drawn, lost)


def inflict(kind: str, seed: str, template: Path, place: Path) -> Outcome:
    """Inflict one fault; whatever goes wrong in doing so is a problem too."""
    try:
        with opened(template, place) as federation:
            ending = KINDS[kind].inflict(federation, random.Random(seed))
            for name in list(federation.vaults):
                federation.end(name)  # which writes its certificate
            return check(federation, kind, ending)
    except Exception as error:
        return Outcome(kind, "?", (f"{type(error).__name__}: {error}",))


_PAGE = """\
# Faults of federations

Written by `make faults-sites`: {faults} faults in {minutes:.0f} minutes.

Each fault hits a separate training with two vaults in processes of their own, {rounds} rounds and {spare} spare
answers, by turns with noise of each site's own and in a secure sum. Where a site of three leaves, there are three
vaults in a secure sum that two are enough for (`--fewest 2`), and after the fault every sum of any messages of a round
is formed: only those over a whole group that was asked for may be readable. A note outside the run is made of every
draw of noise, and every byte that leaves a vault is kept. *Lost* counts faults after which a place of a ledger gave
noise twice, a round got two different answers from one site, a site paid for more than its rounds and the answers that
kills have lost, a training stopped that should go on, a sum could be read that should not (or could not that should),
or a folder did not verify. *Under-reported* counts those with
a draw that a ledger does not hold. A training may stop with a reason where kills have lost more answers than are
spare: they stay paid, so the last round has no budget left. And where the coordinator was put back: sites do not
answer again what they have answered.
"""


def table(outcomes: list[Outcome], seconds: float) -> str:
    """The page: all faults by kind and what came of them."""
    lines = [
        _PAGE.format(faults=len(outcomes), minutes=seconds / 60, rounds=ROUNDS, spare=SPARE),
        "| fault | number | " + " | ".join(ENDINGS) + " | lost | under-reported |",
        "|---|--:|" + "--:|" * (len(ENDINGS) + 2),
    ]
    groups = [(kind.title, [o for o in outcomes if o.kind == name]) for name, kind in KINDS.items()]
    for title, group in [*groups, ("**all**", outcomes)]:
        endings = Counter(outcome.ending for outcome in group)
        under = sum(any("under-reported" in problem for problem in o.problems) for o in group)
        counts = [len(group), *(endings[ending] for ending in ENDINGS)]
        counts += [sum(bool(o.problems) for o in group) - under, under]
        if group:
            lines.append(f"| {title} | " + " | ".join(str(count) for count in counts) + " |")
    paid, drawn, lost = (sum(getattr(o, name) for o in outcomes) for name in ("paid", "drawn", "lost"))
    lines += [
        "",
        f"The sites paid for {paid:,} answers and drew noise {drawn:,}",
        f"times. {lost} answers were paid for and never seen outside: a kill came between.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Inflict all faults; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=sum(kind.share for kind in KINDS.values()))
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; repeatable")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--table", type=Path, help="write the table of all faults to this page")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("tacit.sites").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have turned it off
    began = time.monotonic()
    names = [name for name, kind in KINDS.items() if name in (given.kind or KINDS) for _ in range(kind.share)]
    chosen = [names[index * len(names) // given.faults] for index in range(given.faults)]
    random.Random(given.seed).shuffle(chosen)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="f-") as name:
        place = Path(name)
        templates = {where: make(place / where) for where in NAMES}
        print(f"{given.faults} faults, seed {given.seed}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # the table is then of what there is
            for number, kind in enumerate(chosen):
                here = place / str(number)
                where = KINDS[kind].where[number % len(KINDS[kind].where)]
                outcome = inflict(kind, f"{given.seed} {number}", templates[where], here)
                shutil.rmtree(here, ignore_errors=True)
                outcomes.append(outcome)
                told = f"{outcome.ending:28s} {outcome.paid} {outcome.drawn}"
                print(f"{number:4d} {kind:14s} {told}  {'; '.join(outcome.problems) or 'ok'}", flush=True)
    if given.table is not None:
        given.table.write_text(table(outcomes, time.monotonic() - began), encoding="utf-8")
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{len(outcomes) - failed} held, {failed} did not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
