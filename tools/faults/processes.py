"""Faults of processes: killed, in each other's way, or without memory."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from tacit.losses import cross_entropy
from tacit.raw.probe import SIZES
from tools.faults.checks import RESUMED, UNHARMED, Outcome, finished
from tools.faults.subject import PATIENCE, Case, Setting, Started, attempt, begin

FIRST_SECONDS = 0.3
"""About the time from a process's start to its first charge."""


def kill(case: Case, rng: random.Random) -> Outcome:
    """SIGKILL at one to four random moments."""
    run, kills, problems = case.place / "run", 0, []
    for _ in range(rng.randint(1, 4)):
        started = begin(case, run)
        if rng.random() < 0.3:
            started.wait(rng.uniform(0, FIRST_SECONDS))
        else:
            _until_charged(run, rng.randint(0, case.plan.steps), started)
            started.wait(rng.uniform(0, 0.02))
        if started.processes[0].exitcode is None:
            started.processes[0].kill()
            kills += 1
        ended = started.attempts()[0]
        if ended.ending not in ("killed", "finished"):
            problems.append(f"{ended.ending}: {ended.words}")
    last = attempt(case, run)
    if last.ending != "finished":
        problems.append(f"{last.ending}: {last.words}")
    return finished(case, run, f"{kills} kills", RESUMED if kills else UNHARMED, problems, kills)


def _until_charged(run: Path, charges: int, started: Started) -> None:
    """Wait until the ledger has so many charges, or the processes have ended."""
    ledger = run / "ledger.jsonl"
    while any(process.exitcode is None for process in started.processes):
        if ledger.exists() and ledger.read_bytes().count(b"\n") > charges:
            return
        time.sleep(0.001)


def kill_rank(case: Case, rng: random.Random) -> Outcome:
    """SIGKILL of one of several processes that train together; then on with another number of them."""
    run, problems = case.place / "run", []
    size = rng.choice((2, 3))
    victim = rng.randrange(size)
    started = begin(case, run, size=size)
    _until_charged(run, rng.randint(0, case.plan.steps - 4), started)
    started.wait(rng.uniform(0, 0.02))
    killed = started.processes[victim].exitcode is None
    if killed:
        started.processes[victim].kill()
    struck = time.monotonic()
    for rank, ended in enumerate(started.attempts()):
        if rank != victim and ended.ending not in ("refused", "finished"):
            problems.append(f"process {rank} {ended.ending}: {ended.words}")
    if time.monotonic() - struck > PATIENCE / 2:
        problems.append("the others waited for the dead one")
    again = rng.choice([n for n in (1, 2, 3) if n != size])
    for ended in begin(case, run, size=again).attempts():
        if ended.ending != "finished":
            problems.append(f"{ended.ending}: {ended.words}")
    what = f"process {victim} of {size}, then {again}"
    return finished(case, run, what, RESUMED if killed else UNHARMED, problems, 1)


def two_at_once(case: Case, rng: random.Random) -> Outcome:
    """Two processes in one directory: both start at once, or the second comes while the first is at work."""
    run, problems = case.place / "run", []
    together = rng.random() < 0.5
    first = begin(case, run)
    if not together:
        while not (run / "checkpoint.safetensors").exists() and first.processes[0].exitcode is None:
            time.sleep(0.002)
    second = begin(case, run)
    endings = [started.attempts()[0] for started in (first, second)]
    said = sorted(ended.ending for ended in endings)
    # If the second comes so late that the first has finished, it resumes a run with nothing left to do.
    if said not in (["finished", "refused"], ["finished", "finished"]):
        problems.append("; ".join(f"{ended.ending}: {ended.words}" for ended in endings))
    what = "both start" if together else "second comes later"
    return finished(case, run, what, UNHARMED, problems, 0)


class _Mortal(Dataset[Any]):
    """Data whose loader worker is killed once, at some example."""

    def __init__(self, x: Tensor, y: Tensor, fatal: int, marker: Path) -> None:
        self._data, self._fatal, self._marker = TensorDataset(x, y), fatal, marker
        self._left = fatal

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        self._left -= 1
        if self._left <= 0 and get_worker_info() is not None and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._data[index]


def dead_worker(case: Case, rng: random.Random) -> Outcome:
    """A data loader's worker process is killed in the middle of a batch."""
    run, problems = case.place / "run", []
    fatal, marker = rng.randint(1, 600), case.place / "killed"
    setting = Setting(dataset=lambda x, y: _Mortal(x, y, fatal, marker), workers=rng.choice((1, 2)))
    ended = attempt(case, run, setting)
    stopped = marker.exists() and ended.ending != "finished"
    if stopped and not (ended.ending == "refused" and "loads data has died" in ended.words):
        problems.append(f"{ended.ending}: {ended.words}")
    last = attempt(case, run, setting) if stopped else ended
    if last.ending != "finished":
        problems.append(f"{last.ending}: {last.words}")
    return finished(
        case, run, f"at example {fatal}", RESUMED if stopped else UNHARMED, problems, int(stopped)
    )


def no_memory(case: Case, rng: random.Random) -> Outcome:
    """Memory runs out whenever more than a few examples are worked on at once."""
    most = rng.randint(SIZES[1], 20)  # the probe looks at so many examples at once
    error = rng.choice((MemoryError("no memory"), torch.OutOfMemoryError("CUDA out of memory.")))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[0]) > most:
            raise error
        return cross_entropy(model, batch)

    ended = attempt(case, case.place / "run", Setting(loss=loss))
    problems = [] if ended.ending == "finished" else [f"{ended.ending}: {ended.words}"]
    return finished(case, case.place / "run", f"at most {most} examples fit", UNHARMED, problems, 0)
