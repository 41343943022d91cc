"""Faults of what a run is fed: numbers that are none, and clocks that jump."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tacit.losses import cross_entropy
from tools.faults.checks import UNHARMED, Outcome, finished
from tools.faults.subject import Case, Setting, attempt

POISON = {"NaN": float("nan"), "infinity": float("inf"), "1e38": 1e38}


def not_finite(case: Case, rng: random.Random) -> Outcome:
    """Some or all examples have inputs, or losses, that are not finite or overflow."""
    name, value = rng.choice(list(POISON.items()))
    share, in_loss = rng.choice((0.01, 0.2, 0.9, 1.0)), rng.random() < 0.4

    def dataset(x: Tensor, y: Tensor) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(case.number)
        struck = torch.rand(len(x), generator=generator) < share
        x = x.clone()
        x[struck, int(torch.randint(12, (1,), generator=generator))] = value
        return TensorDataset(x, y)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        losses = cross_entropy(model, batch)
        return torch.where(batch[0][:, 2] < 4 * share - 2, losses * value, losses)

    setting = Setting(loss=loss) if in_loss else Setting(dataset=dataset)
    ended = attempt(case, case.place / "run", setting)
    problems = [] if ended.ending == "finished" else [f"{ended.ending}: {ended.words}"]
    what = f"{name} in {'losses' if in_loss else f'{share:.0%} of inputs'}"
    return finished(case, case.place / "run", what, UNHARMED, problems, 0)


def clock_jump(case: Case, rng: random.Random) -> Outcome:
    """The clock jumps, back or forth, by seconds to decades, again and again."""

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            jump = rng.choice((-1, 1)) * 10 ** rng.uniform(0, 9)
            return datetime.now(tz or UTC) + timedelta(seconds=jump)

    def patched() -> AbstractContextManager[Any]:
        return mock.patch("tacit.release.ledger_file.datetime", Jumping)

    ended = attempt(case, case.place / "run", Setting(patched=patched))
    problems = [] if ended.ending == "finished" else [f"{ended.ending}: {ended.words}"]
    return finished(case, case.place / "run", "at every line of the ledger", UNHARMED, problems, 0)
