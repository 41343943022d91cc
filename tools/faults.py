"""Kill runs at random moments with SIGKILL, resume them until they finish, and check what they promise.

For every run: each noise that was drawn stands in the ledger, and no place of the ledger gave noise twice;
epsilon of all charges, counted by two accountants, is within the promise; the run finishes and its
certificate verifies.

    python -m tools.faults --runs 100
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit import Plan, SecureNoise, Trainer
from tacit.certificate import load_certificate, verify
from tacit.losses import cross_entropy
from tacit.plan import Spend, epsilon_of, make_plan
from tacit.release.ledger import read_ledger
from tacit.training.tensors import read_tensors

METHODS = ("tp-topk", "on-topk", "rs", "dp-sgd", "tp-rand", "on-rand")
ACCOUNTANTS = ("rdp", "rdp", "pld")
CHECKPOINT_SECONDS = (0.0, 0.02, 0.1, 30.0)
EXAMPLES, BATCH, EPOCHS = 256, 32, 8
PATIENCE = 300.0

_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Case:
    """One run and how it will be killed: after each delay, in seconds from its (re)start."""

    number: int
    plan: Plan
    checkpoint_seconds: float
    delays: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of a case; ``problems`` is empty if everything held."""

    case: Case
    kills: int
    charges: int
    releases: int
    epsilon: float
    recounted: float
    seconds: float
    problems: tuple[str, ...]


class Witness(SecureNoise):
    """Secure noise that leaves a trace of every release outside the run directory."""

    path: Path

    def begin(self, index: int) -> None:
        """Note that the noise of this place in the ledger is about to be drawn."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{index}\n".encode())
        os.close(descriptor)
        super().begin(index)


def train(case: Case, run: Path) -> None:
    """Start the run, or go on with it, as a user's script would."""
    torch.set_num_threads(1)
    torch.manual_seed(case.number)
    x = torch.randn(EXAMPLES, 12)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    Witness.path = run.with_suffix(".witness")
    with mock.patch("tacit.training.trainer.SecureNoise", Witness):
        trainer = Trainer(
            model,
            TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()),
            cross_entropy,
            case.plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.3, momentum=0.5),
            average=0.9,
            run_dir=run,
            checkpoint_seconds=case.checkpoint_seconds,
        )
        begun = (run / "run.json").exists()
        trainer.resume(progress=False) if begun else trainer.fit(progress=False)


def survive(case: Case, run: Path) -> Outcome:
    """Run a case to its end, through all its kills, and look at what is left."""
    started = time.monotonic()
    kills = 0
    for delay in (*case.delays, PATIENCE):
        process = _fork.Process(target=train, args=(case, run))
        process.start()
        process.join(delay)
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
        elif process.exitcode == 0 and delay == PATIENCE:
            break
        elif process.exitcode != 0:
            return Outcome(case, kills, 0, 0, 0, 0, time.monotonic() - started, ("it ended with an error",))
    return check(case, run, kills, time.monotonic() - started)


def check(case: Case, run: Path, kills: int, seconds: float) -> Outcome:
    """Compare the ledger with the noise that was drawn, and epsilon with the promise."""
    problems = []
    charges = read_ledger(run / "ledger.jsonl").charges
    drawn = [int(line) for line in run.with_suffix(".witness").read_text().splitlines()]
    if len(set(drawn)) != len(drawn):
        problems.append("a place of the ledger gave noise twice")
    if not set(drawn) <= set(range(len(charges))):
        problems.append("noise was drawn that the ledger does not know")
    if not len(drawn) <= len(charges) <= len(drawn) + kills:
        problems.append("there are charges that no crash explains")
    if not (run / "certificate.json").exists():
        problems.append("the run did not finish")
        return Outcome(case, kills, len(charges), len(drawn), 0, 0, seconds, tuple(problems))
    _, numbers = read_tensors(run / "checkpoint.safetensors")
    if numbers["step"] != case.plan.steps:
        problems.append(f"the last checkpoint has {numbers['step']} steps")
    spends = [Spend(charge.sampling_rate, charge.noise_multiplier, 1) for charge in charges]
    epsilon = epsilon_of(spends, case.plan.delta, case.plan.accountant)
    verdict = verify(run)
    recounted = verdict.epsilon if verdict.epsilon is not None else float("inf")
    if not epsilon <= case.plan.epsilon or not recounted <= case.plan.epsilon:
        problems.append("epsilon is above the promise")
    if load_certificate(run / "certificate.json").charged_releases != len(charges):
        problems.append("the certificate under-reports")
    if not verdict.agrees or not verdict.for_release:
        problems.append(f"the certificate does not verify: {'; '.join(verdict.problems)}")
    return Outcome(case, kills, len(charges), len(drawn), epsilon, recounted, seconds, tuple(problems))


def cases(count: int, seed: int, duration: float) -> list[Case]:
    """Cases with one to four kills each, anywhere from the first milliseconds to past the usual end."""
    rng = random.Random(seed)
    plans: dict[tuple[str, str], Plan] = {}
    made = []
    for number in range(count):
        key = METHODS[number % len(METHODS)], ACCOUNTANTS[number % len(ACCOUNTANTS)]
        if key not in plans:
            plans[key] = _plan(*key)
        delays = tuple(
            rng.uniform(0, 0.1 if rng.random() < 0.25 else 1.1) * duration for _ in range(rng.randint(1, 4))
        )
        made.append(Case(number, plans[key], rng.choice(CHECKPOINT_SECONDS), delays))
    return made


def _plan(method: str, accountant: str) -> Plan:
    options = {} if method == "dp-sgd" else {"active_ratio": 0.3}
    return make_plan(
        method,
        epsilon=4.0,
        delta=1e-5,
        examples=EXAMPLES,
        batch_size=BATCH,
        epochs=EPOCHS,
        accountant=accountant,
        **options,
    )


def usual_duration(directory: Path) -> float:
    """Seconds that a run takes that nobody kills.

    The first run is in this process, so that the forks find every module loaded and start at once.
    """
    unharmed = Case(-1, _plan("tp-topk", "pld"), 0.1, ())
    train(unharmed, directory / "warm")
    outcome = survive(unharmed, directory / "unharmed")
    if outcome.problems:
        raise SystemExit(f"A run that nobody kills already fails: {outcome.problems[0]}.")
    return outcome.seconds


def _row(outcome: Outcome) -> str:
    case = outcome.case
    verdict = "; ".join(outcome.problems) or "ok"
    return (
        f"{case.number:4d}  {case.plan.method:8s} {case.plan.accountant:4s} {outcome.kills:5d} "
        f"{case.plan.steps:6d} {outcome.charges:8d} {outcome.releases:9d} {outcome.epsilon:8.4f} "
        f"{outcome.recounted:9.4f} {outcome.seconds:6.1f}  {verdict}"
    )


def main() -> int:
    """Run all cases, print a table and a closing line; the exit code says whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{given.runs} runs, seed {given.seed}, promise epsilon = 4")
    print(" run  method   acct kills  steps  charges  releases  epsilon  recounted  seconds")
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        chosen = cases(given.runs, given.seed, usual_duration(Path(place)))
        directories = [Path(place) / f"run-{case.number}" for case in chosen]
        with ProcessPoolExecutor(given.jobs, mp_context=_fork) as pool:
            for outcome in pool.map(survive, chosen, directories):
                print(_row(outcome), flush=True)
                failed += bool(outcome.problems)
    print(f"{given.runs - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
