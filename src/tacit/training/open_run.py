"""A run as all ranks share it: started alike, under one name and one ledger, with checkpoints to resume from."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.distributed.ranks import Ranks, is_shard
from tacit.errors import FileError
from tacit.plan import Plan, plan_digest
from tacit.raw.clipping import Isolation, check_isolation
from tacit.raw.fingerprint import fingerprint
from tacit.release.ledger import Ledger, MemoryLedger
from tacit.release.ledger_file import Charge
from tacit.runs import DEFAULT_NOT_COVERED, ISOLATION
from tacit.runs.layout import CHECKPOINT_FILE
from tacit.runs.run_directory import Run, Start, model_digest
from tacit.units import Units

Parts = dict[str, tuple[dict[str, Tensor], dict[str, Any]]]
"""Tensors and plain numbers of every part of a state of training."""


@dataclass(frozen=True)
class OpenRun:
    """A run that all ranks have begun: its name, and its ledger, on disk on the first rank if anywhere.

    ``run`` is the run directory, on the rank that holds it.
    """

    name: str
    ledger: Ledger
    run: Run | None


def start_of(
    seed: int | None, unit: str, not_covered: Sequence[str], isolation: Isolation, witness: str | Path | None
) -> Start:
    """What a run is started with, in the words of its certificate."""
    return Start(
        seed=seed,
        unit=unit,
        not_covered=(*DEFAULT_NOT_COVERED, ISOLATION[check_isolation(isolation)], *not_covered),
        isolation=isolation,
        witness=None if witness is None else Path(witness),
    )


def check_same_start(
    ranks: Ranks, plan: Plan, model: nn.Module, dataset: Dataset[Any], settings: object, units: Units | None
) -> None:
    """Refuse ranks that were not started alike; give all of them the first one's weights, but those in shards.

    With a data set in another order, one example could be worked on by two ranks in one step, which voids the
    bound on what an example can do: so the data is compared too, and so are the units that its examples belong to.
    """
    examples = plan.examples if units is None else len(units.codes)
    ranks.check_same("the plan", lambda: plan_digest(plan))
    ranks.check_same("the model (names, shapes and types of parameters)", lambda: model_digest(model))
    ranks.check_same("the trainer's settings", lambda: repr(settings))
    ranks.check_same("the data or its order", lambda: fingerprint(dataset, examples))
    ranks.check_same(
        "the unit of some example", lambda: "" if units is None else sha256(units.codes.tobytes()).hexdigest()
    )
    with torch.no_grad():
        ranks.spread({key: value for key, value in model.state_dict().items() if not is_shard(value)})


def start_run(
    ranks: Ranks, directory: Path | None, plan: Plan, model: nn.Module | None, start: Start
) -> OpenRun:
    """Start a run: in a directory of the first rank, or in memory. A plan that begins with counts needs no model."""
    made: list[Run] = []

    def begin() -> str:
        if directory is None:
            return uuid.uuid4().hex
        made.append(Run.create(directory, plan, model, start))
        return made[0].about.run

    name = ranks.lead(begin)
    return OpenRun(name, made[0].ledger, made[0]) if made else OpenRun(name, MemoryLedger(), None)


def open_run(ranks: Ranks, directory: Path, plan: Plan, model: nn.Module | None, start: Start) -> OpenRun:
    """Go on with a run in a directory of the first rank; all ranks know its charges."""
    opened: list[Run] = []

    def open_it() -> dict[str, Any]:
        opened.append(Run.open(directory, plan, model, start))
        run = opened[0]
        return {"run": run.about.run, "charges": [charge.record() for charge in run.ledger.charges]}

    found = ranks.lead(open_it)
    if opened:
        return OpenRun(found["run"], opened[0].ledger, opened[0])
    ledger = MemoryLedger()
    for charge in found["charges"]:
        ledger.charge(Charge(**charge))
    return OpenRun(found["run"], ledger, None)


def save_parts(run: Run, parts: Parts, about: Mapping[str, Any]) -> None:
    """Write a checkpoint: the parts of a state, and the numbers ``about`` it."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {**about, "parts": {}}
    for name, (part, plain) in parts.items():
        tensors |= {f"{name}:{key}": tensor for key, tensor in part.items()}
        numbers["parts"][name] = plain
    run.save(tensors, numbers)


def parts_of(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Parts:
    """The parts that ``save_parts`` has written."""
    return {
        name: ({k.split(":", 1)[1]: t for k, t in tensors.items() if k.startswith(f"{name}:")}, plain)
        for name, plain in numbers["parts"].items()
    }


def last_checkpoint(run: Run, counts: int = 0) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """What a run directory holds of a checkpoint: none in a run that never charged anything but its ``counts``."""
    if (run.path / CHECKPOINT_FILE).exists():
        return run.load()
    if len(run.ledger) > counts:
        raise FileError(f"{run.path} has a ledger with charges but no checkpoint; it cannot be resumed.")
    return {}, None


@contextmanager
def refuse_misfits(directory: Path | None, what: str) -> Iterator[None]:
    """Say in one sentence that the checkpoint which is restored here does not fit."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split()).rstrip(". ")
        raise FileError(f"The checkpoint in {directory} does not fit this {what}: {why}.") from error
