"""The directory of a run: what was planned, what was paid, where training has got to."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.files import file_digest, write_text
from tacit.plan import Plan, load_plan, plan_digest, save_plan
from tacit.release.ledger import FileLedger
from tacit.release.witness import Witness
from tacit.runs import DEFAULT_NOT_COVERED, DEFAULT_UNIT
from tacit.runs.description import Description, load_description
from tacit.runs.layout import CHECKPOINT_FILE, LEDGER_FILE, PLAN_FILE, RUN_FILE
from tacit.support import Block, Kind, Support
from tacit.support.support import trainable_parameters
from tacit.tensors import read_tensors, write_tensors

PROBED = "probed"


@dataclass(frozen=True)
class Start:
    """What a run is started with besides its plan and its model, and cannot change afterwards.

    ``unit`` and ``not_covered`` are words for its certificate, ``witness`` is the place of a second note of its ledger,
    ``isolation`` is how examples are kept apart.
    """

    seed: int | None = None
    unit: str = DEFAULT_UNIT
    not_covered: tuple[str, ...] = DEFAULT_NOT_COVERED
    witness: Path | None = None
    isolation: str = PROBED


class Run:
    """A run directory that this process holds: no other can train in it meanwhile."""

    def __init__(self, path: Path, about: Description, ledger: FileLedger) -> None:
        self.path, self.about, self.ledger = path, about, ledger

    @classmethod
    def create(cls, path: Path, plan: Plan, model: nn.Module | None, start: Start) -> Run:
        """Start a run in a directory that holds none yet; without a model where the plan begins with counts."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"The run directory {path} cannot be made: {error.strerror}.") from error
        _check_unused(path)
        _check_never_charged(path)
        witness = None if start.witness is None else Witness(start.witness)
        if witness is not None and witness.path.is_relative_to(path.absolute()):
            raise ArgumentError(
                f"The witness {witness.path} lies in the run directory, and would be put back with it; choose another "
                "place."
            )
        about = Description(
            run=uuid.uuid4().hex,
            seed=start.seed,
            model="" if model is None else model_digest(model),
            unit=start.unit,
            not_covered=start.not_covered,
            witness=None if witness is None else str(witness.path),
            isolation=start.isolation,
            coordinates=None if model is None else coordinates_of(model),
        )

        def describe() -> None:
            _check_unused(path)
            save_plan(plan, path / PLAN_FILE)
            write_text(path / RUN_FILE, about.text)

        ledger = FileLedger.create(
            path / LEDGER_FILE,
            run=about.run,
            plan_digest=plan_digest(plan),
            about=about.digest,
            prepare=describe,
            witness=witness,
        )
        return cls(path, about, ledger)

    @classmethod
    def open(cls, path: Path, plan: Plan, model: nn.Module | None, start: Start) -> Run:
        """Go on with a run; refuse another plan, another model or another start."""
        about = load_description(path / RUN_FILE)
        if plan_digest(load_plan(path / PLAN_FILE)) != plan_digest(plan):
            raise FileError(
                f"The plan in {path} is not the plan of this trainer; "
                "resume with the plan it was started with."
            )
        # A run that begins with counts of a table's columns has its model from them; its checkpoint must fit it.
        if model is not None and about.model != model_digest(model) and not (plan.counts and not about.model):
            raise FileError(
                f"The model has changed since {path} was started: "
                "its parameters have other names, shapes or types."
            )
        if about.seed != start.seed:
            raise FileError(
                f"{path} was started with seed {about.seed}, not {start.seed}; resume with the same seed."
            )
        # Runs of version 0.1 do not say; they were all probed.
        if (about.isolation or PROBED) != start.isolation:
            raise FileError(
                f"{path} was started with isolation {about.isolation or PROBED!r}, not {start.isolation!r}; "
                "resume with the same."
            )
        if about.unit not in (None, start.unit):  # runs of version 0.1 do not say
            raise FileError(
                f"{path} was started to protect {about.unit!r}, not {start.unit!r}; resume with the same unit."
            )
        if start.witness is not None and str(start.witness.absolute()) != about.witness:
            known = "no witness" if about.witness is None else f"the witness {about.witness}"
            raise FileError(
                f"{path} was started with {known}, not {start.witness.absolute()}; resume with the same."
            )
        ledger = FileLedger.open(
            path / LEDGER_FILE,
            run=about.run,
            plan_digest=plan_digest(plan),
            witness=None if about.witness is None else Witness(about.witness),
        )
        if ledger.about and ledger.about != file_digest(path / RUN_FILE):
            ledger.close()
            raise FileError(
                f"{path / RUN_FILE} is not the one that the ledger was started with: it was edited."
            )
        return cls(path, about, ledger)

    def save(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Write a checkpoint, stamped with the head of the ledger."""
        write_tensors(self.path / CHECKPOINT_FILE, tensors, {**numbers, "ledger": self.ledger.head})

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read a checkpoint; refuse one that this ledger does not know, or that is ahead of it."""
        tensors, numbers = read_tensors(self.path / CHECKPOINT_FILE)
        if not isinstance(numbers, dict) or not isinstance(numbers.get("ledger"), str):
            raise FileError(f"{self.path / CHECKPOINT_FILE} is not a checkpoint.")
        paid, step = self.ledger.confirm(numbers["ledger"]), numbers.get("step")
        if not isinstance(step, int) or not 0 <= step <= paid:
            raise LedgerError(
                f"The checkpoint in {self.path} has {step} steps, but only {paid} had been charged when it "
                "was written; it was edited, so nothing can be promised."
            )
        return tensors, numbers


def _check_never_charged(path: Path) -> None:
    """Refuse to start again where a witness knows of charges to the run that lay here."""
    if not (path / RUN_FILE).exists():
        return
    before = load_description(path / RUN_FILE)
    if before.witness is None:
        return
    noted = Witness(before.witness).last(before.run)
    if noted is not None and noted[0]:
        raise LedgerError(
            f"The witness {before.witness} has noted {noted[0]} releases of the run in {path}, and its ledger is gone, "
            "so no true epsilon can be stated: start a new run elsewhere, and add its epsilon to what this one had "
            "promised."
        )


def _check_unused(path: Path) -> None:
    if holds_charges(path):
        raise FileError(f"{path} already holds a run; resume it, or choose another directory.")


def holds_charges(path: Path) -> bool:
    """Whether training may have begun in a directory: its first checkpoint precedes its first charge."""
    return (path / LEDGER_FILE).exists() or (path / CHECKPOINT_FILE).exists()


def coordinates_of(model: nn.Module) -> int:
    """The number of trainable coordinates."""
    return sum(p.numel() for p in trainable_parameters(model).values())


def model_digest(model: nn.Module) -> str:
    """SHA-256 of the trainable parameters' names, shapes and types."""
    layout = [(name, list(p.shape), str(p.dtype)) for name, p in trainable_parameters(model).items()]
    return hashlib.sha256(json.dumps(layout).encode()).hexdigest()


def support_state(support: Support) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A support as tensors and plain numbers."""
    tensors = {name: block.index for name, block in support.items() if block.index.numel()}
    layout: dict[str, Any] = {name: [list(block.shape), block.kind.value] for name, block in support.items()}
    for name, block in support.items():
        if block.weights is not None:
            tensors[f"{name}/weights"] = block.weights.values
            layout[name].append(block.weights.axis)
    return tensors, layout


def support_from_state(tensors: dict[str, Tensor], layout: dict[str, Any]) -> Support:
    """The support of a state."""
    empty = Block.all(()).index
    try:
        return Support(
            {
                name: Block.weighted(tuple(shape), tensors[f"{name}/weights"], *axis)
                if axis
                else Block.restore(tuple(shape), Kind(kind), tensors.get(name, empty))
                for name, (shape, kind, *axis) in layout.items()
            }
        )
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise LedgerError(f"The support in the checkpoint cannot be read: {error}.") from error
