"""The run that is harmed: a small private training, as a user's script would start and resume it."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tacit import Plan, SecureNoise, Trainer
from tacit.distributed import ALONE, Group, Ranks
from tacit.errors import TacitError
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.training.course import Together

METHODS = ("tp-topk", "on-topk", "rs", "dp-sgd", "sparta", "tp-rand", "on-rand")
ACCOUNTANTS = ("rdp", "rdp", "pld")
EXAMPLES, BATCH, EPOCHS = 256, 32, 6
EPSILON, DELTA = 4.0, 1e-5
PATIENCE = 120.0
"""Seconds after which a process that should have ended counts as hung."""

fork = multiprocessing.get_context("fork")
Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


@dataclass(frozen=True)
class Case:
    """One fault: its kind, the plan of the run it strikes, and a place for what is noted about it."""

    number: int
    kind: str
    plan: Plan
    checkpoint_seconds: float
    place: Path

    @property
    def together(self) -> int:
        """How many releases are charged at once; by the clock it would be different in every run."""
        return 1 + 3 * (self.number % 2)

    @property
    def witness(self) -> Path:
        """Where every draw of noise is noted, outside the run directory."""
        return self.place / "witness"


@dataclass(frozen=True)
class Setting:
    """What is different in the process that trains: data, loss, loader workers, and what is patched in it."""

    dataset: Callable[[Tensor, Tensor], Dataset[Any]] = TensorDataset
    loss: Loss = cross_entropy
    workers: int = 0
    patched: Callable[[], AbstractContextManager[Any]] = nullcontext
    stop_at: int | None = None
    """Vanish after this step, as a killed process does; the last checkpoint is some steps behind."""


@dataclass(frozen=True)
class Attempt:
    """How one process ended: ``finished``, ``refused`` (one of Tacit's errors), ``failed`` (any other), ``killed``."""

    ending: str
    words: str = ""
    seconds: float = 0.0


class Witness(SecureNoise):
    """Secure noise that leaves a trace of every draw, outside the run directory: its place and its scale."""

    path: Path

    def begin(self, index: int) -> None:
        """Remember the place in the ledger whose noise is about to be drawn."""
        self._index: int | None = index
        super().begin(index)

    def add(self, values: Tensor, scale: float, factor: float) -> None:
        """Note place and scale before the first noise of a release."""
        if self._index is not None:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{self._index} {scale!r}\n".encode())
            os.close(descriptor)
            self._index = None
        super().add(values, scale, factor)


def train(case: Case, run: Path, setting: Setting, ranks: Ranks = ALONE) -> None:
    """Start the run, or go on with it."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(case.number)
    x = torch.randn(EXAMPLES, 12, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    torch.manual_seed(case.number)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    Witness.path = case.witness
    together = mock.patch.object(Together, "count", lambda self, left, disk: min(left, case.together))
    with mock.patch("tacit.training.trainer.SecureNoise", Witness), together, setting.patched():
        trainer = Trainer(
            model,
            setting.dataset(x, y),
            setting.loss,
            case.plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.3, momentum=0.5),
            average=0.9,
            run_dir=run,
            workers=setting.workers,
            checkpoint_seconds=case.checkpoint_seconds,
            ranks=ranks,
        )
        begun = ranks.lead((run / "run.json").exists)
        if setting.stop_at is not None:
            _vanish(trainer, setting.stop_at)
        trainer.resume(progress=False) if begun else trainer.fit(progress=False)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise ArithmeticError("the model is not finite")


def _vanish(trainer: Trainer, steps: int) -> None:
    for step in trainer.steps():
        if step.number == max(1, steps - 3):
            trainer.save()
        if step.number == steps:
            os._exit(0)


@dataclass
class Started:
    """Processes that train, one or several together, and where they write how they ended."""

    processes: list[Any]
    ends: list[Path]
    began: float = field(default_factory=time.monotonic)

    def wait(self, seconds: float = PATIENCE) -> None:
        """Wait until all have ended, but no longer than so many seconds."""
        limit = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, limit - time.monotonic()))

    def attempts(self) -> list[Attempt]:
        """How each ended; one that has not ended by now is hung, and killed."""
        self.wait()
        found = []
        for process, end in zip(self.processes, self.ends, strict=True):
            seconds = time.monotonic() - self.began
            if process.exitcode is None:
                process.kill()
                process.join()
                found.append(Attempt("hung", f"after {seconds:.0f} s", seconds))
            elif end.exists():
                found.append(Attempt(*json.loads(end.read_text()), seconds))
            else:
                found.append(Attempt("killed", f"exit code {process.exitcode}", seconds))
        return found


def begin(case: Case, run: Path, setting: Setting | None = None, *, size: int = 1) -> Started:
    """Start so many processes that train ``run`` together."""
    place = case.place / f"processes-{time.monotonic_ns()}"
    place.mkdir()
    ends = [place / f"{rank}.json" for rank in range(size)]
    processes = [
        fork.Process(target=_process, args=(case, run, setting or Setting(), rank, size, place))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return Started(processes, ends)


def attempt(case: Case, run: Path, setting: Setting | None = None) -> Attempt:
    """Train in a process of its own until it ends."""
    return begin(case, run, setting).attempts()[0]


def _process(case: Case, run: Path, setting: Setting, rank: int, size: int, place: Path) -> None:
    ranks: Ranks = ALONE
    ending = ["finished", ""]
    try:
        if size > 1:
            store = f"file://{place / 'store'}"
            dist.init_process_group(
                "gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
            )
            ranks = Group(dist.group.WORLD)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(case, run, setting, ranks)
    except TacitError as error:
        ending = ["refused", str(error)]
    except BaseException as error:
        ending = ["failed", f"{type(error).__name__}: {error}"]
    (place / f"{rank}.json").write_text(json.dumps(ending))
    os._exit(0)


def plan_for(method: str, accountant: str) -> Plan:
    """A plan for the small problem."""
    options: dict[str, Any] = {} if method == "dp-sgd" else {"active_ratio": 0.3}
    return make_plan(
        method,
        epsilon=EPSILON,
        delta=DELTA,
        examples=EXAMPLES,
        batch_size=BATCH,
        epochs=EPOCHS,
        accountant=accountant,
        **options,
    )
