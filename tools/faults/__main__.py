"""Inflict faults, print what came of each, and write the table of all."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

import tools.faults
from tacit import Plan
from tools.faults import damage, disks, inputs, processes
from tools.faults.checks import ENDINGS, Outcome
from tools.faults.subject import ACCOUNTANTS, EPSILON, METHODS, Case, Setting, plan_for, train


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how it is called, how it is inflicted, how often among 200."""

    title: str
    inflict: Callable[[Case, random.Random], Outcome]
    share: int


KINDS = {
    "kill": Kind("kill -9, one to four times", processes.kill, 36),
    "killed-rank": Kind("kill -9 of one of several processes", processes.kill_rank, 14),
    "full-disk": Kind("full disk", disks.full_disk, 16),
    "read-only": Kind("read-only directory", disks.read_only, 12),
    "checkpoint": Kind("damaged checkpoint", damage.checkpoint, 20),
    "ledger": Kind("damaged ledger", damage.ledger, 24),
    "description": Kind("damaged plan or description", damage.description, 8),
    "support": Kind("damaged support file", damage.support, 10),
    "certificate": Kind("damaged file of a finished run", damage.certificate, 8),
    "hostile": Kind("checkpoint made to do harm", damage.hostile, 10),
    "clock": Kind("clock that jumps", inputs.clock_jump, 6),
    "worker": Kind("data loader worker that dies", processes.dead_worker, 8),
    "not-finite": Kind("NaN, infinite or overflowing inputs and losses", inputs.not_finite, 12),
    "memory": Kind("no memory for a chunk", processes.no_memory, 6),
    "two": Kind("two processes in one directory", processes.two_at_once, 10),
}


def cases(count: int, seed: int, only: list[str], place: Path) -> list[Case]:
    """So many faults of the kinds, by their shares, over all methods and accountants."""
    rng = random.Random(seed)
    names = [name for name, kind in KINDS.items() if name in only for _ in range(kind.share)]
    chosen = [names[index * len(names) // count] for index in range(count)]
    plans: dict[tuple[str, str], Plan] = {}
    made = []
    for number, name in enumerate(chosen):
        key = METHODS[number % len(METHODS)], ACCOUNTANTS[number % len(ACCOUNTANTS)]
        if key not in plans:
            plans[key] = plan_for(*key)
        where = place / f"{number}"
        where.mkdir()
        made.append(Case(number, name, plans[key], rng.choice((0.0, 0.02, 0.1, 30.0)), where))
    return made


def inflict(case: Case, seed: int) -> Outcome:
    """Inflict one fault; whatever goes wrong in doing so is a problem too."""
    try:
        return KINDS[case.kind].inflict(case, random.Random(f"{seed} {case.number}"))
    except Exception as error:
        return Outcome(case, "?", "?", (f"{type(error).__name__}: {error}",))


def row(outcome: Outcome) -> str:
    """One line for the terminal."""
    case = outcome.case
    verdict = "; ".join(outcome.problems) or "ok"
    return (
        f"{case.number:4d} {case.kind:12s} {case.plan.method:8s} {outcome.what[:42]:42s} {outcome.ending:26s} "
        f"{outcome.charges:4d} {outcome.drawn:4d} {outcome.certified:8.4f} {outcome.counted:8.4f}  {verdict}"
    )


def table(outcomes: list[Outcome], seconds: float) -> str:
    """The page: all faults by kind and what came of them."""
    lines = [
        "# Faults",
        "",
        f"Written by `make faults`: {len(outcomes)} faults in {seconds / 60:.0f} minutes, promise ε = {EPSILON:g}.",
        "",
        "Each fault hits a separate small private run; together they cover all methods. *Continued*: nothing to do.",
        "*Stopped, resumed*: the process ended and a second one finished the run. *Refused, repaired, resumed*: the",
        "run said in one sentence why it could not continue, changed nothing, and finished after the file was",
        "restored or the disk was writable again. *Refused*: a damaged file alone, which was not accepted.",
        "",
        "After every fault a witness outside the run counts the noise that was actually drawn, without the ledger.",
        "*Lost* counts faults after which a draw was not in the ledger, a position of the ledger gave noise twice, the",
        "run could not be finished, its certificate did not verify, or anything else was wrong.",
        "*Under-reported* counts those in which ε of the draws, by an independent accountant, was above the",
        "certificate's or the promise. Every second run charges four releases at once, ahead of the first: a fault can",
        "then leave up to four charges without a draw, in the others one.",
        "",
        "| fault | number | " + " | ".join(ENDINGS) + " | lost | under-reported |",
        "|---|--:|" + "--:|" * (len(ENDINGS) + 2),
    ]
    groups = [(kind.title, [o for o in outcomes if o.case.kind == name]) for name, kind in KINDS.items()]
    for title, group in [*groups, ("**all**", outcomes)]:
        endings = Counter(outcome.ending for outcome in group)
        under = sum(any("under-reported" in problem for problem in o.problems) for o in group)
        lost = sum(bool(o.problems) for o in group) - under
        counts = [len(group), *(endings[ending] for ending in ENDINGS), lost, under]
        if group:
            lines.append(f"| {title} | " + " | ".join(str(count) for count in counts) + " |")
    finished = [o for o in outcomes if o.charges]
    spare = sum(o.charges - o.drawn for o in finished)
    highest = max((o.counted for o in finished), default=0.0)
    lines += [
        "",
        f"The {len(finished)} runs made {sum(o.drawn for o in finished):,} draws; {spare} charges were paid without",
        f"one, because a fault intervened. The highest ε of draws was {highest:.4f}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Inflict all faults; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(description=(tools.faults.__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; repeatable")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--table", type=Path, help="write the table of all faults to this page")
    given = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    print(f"{given.faults} faults, seed {given.seed}, promise epsilon = {EPSILON:g}")
    print(f"   # {'kind':12s} {'method':8s} {'what':42s} {'ending':26s} paid drawn ε paid ε drawn")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        chosen = cases(given.faults, given.seed, given.kind or list(KINDS), place)
        warm = Case(-1, "none", plan_for("tp-topk", "pld"), 30.0, place)
        train(warm, place / "warm", Setting())  # so that the forks find every module loaded
        with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
            outcomes = []
            for outcome in pool.map(inflict, chosen, [given.seed] * len(chosen)):
                print(row(outcome), flush=True)
                outcomes.append(outcome)
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    if given.table is not None:
        given.table.write_text(table(outcomes, time.monotonic() - began), encoding="utf-8")
    print(f"{len(outcomes) - failed} held, {failed} did not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
