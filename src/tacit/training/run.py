"""The directory of a run: what was planned, what was paid, where training stands."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tacit.errors import FileError, LedgerError
from tacit.files import read_json, write_json
from tacit.plan import Plan, load_plan, plan_digest, save_plan
from tacit.release.ledger import FileLedger
from tacit.support import Block, Kind, Support
from tacit.support.support import trainable_parameters
from tacit.training.tensors import read_tensors, write_tensors

_FORMAT = "tacit-run-1"
PROBED = "probed"


class Run:
    """A run directory that this process holds: no other can train in it meanwhile."""

    def __init__(self, path: Path, about: dict[str, Any], ledger: FileLedger) -> None:
        self.path, self.about, self.ledger = path, about, ledger

    @classmethod
    def create(
        cls, path: Path, plan: Plan, model: nn.Module, seed: int | None, isolation: str = PROBED
    ) -> Run:
        """Start a run in a directory that holds none yet."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"The run directory {path} cannot be made: {error.strerror}.") from error
        run = uuid.uuid4().hex
        about = {
            "format": _FORMAT,
            "run": run,
            "seed": seed,
            "model": model_digest(model),
            "isolation": isolation,
        }

        def describe() -> None:
            _check_unused(path)
            save_plan(plan, path / "plan.json")
            write_json(path / "run.json", about)

        _check_unused(path)
        digest = plan_digest(plan)
        ledger = FileLedger.create(path / "ledger.jsonl", run=run, plan_digest=digest, prepare=describe)
        return cls(path, about, ledger)

    @classmethod
    def open(cls, path: Path, plan: Plan, model: nn.Module, seed: int | None, isolation: str = PROBED) -> Run:
        """Go on with a run; refuse another plan, model, seed or isolation."""
        about = read_json(path / "run.json")
        if (
            not isinstance(about, dict)
            or about.get("format") != _FORMAT
            or not isinstance(about.get("run"), str)
        ):
            raise FileError(f"{path / 'run.json'} is not from this version of Tacit, or was edited.")
        if plan_digest(load_plan(path / "plan.json")) != plan_digest(plan):
            raise FileError(
                f"The plan in {path} is not the plan of this trainer; "
                "resume with the plan it was started with."
            )
        if about.get("model") != model_digest(model):
            raise FileError(
                f"The model has changed since {path} was started: "
                "its parameters have other names, shapes or types."
            )
        if about.get("seed") != seed:
            raise FileError(
                f"{path} was started with seed {about.get('seed')}, not {seed}; resume with the same seed."
            )
        # Runs of version 0.1 do not say; they were all probed.
        if about.get("isolation", PROBED) != isolation:
            raise FileError(
                f"{path} was started with isolation {about.get('isolation', PROBED)!r}, not {isolation!r}; resume with "
                "the same."
            )
        ledger = FileLedger.open(path / "ledger.jsonl", run=about["run"], plan_digest=plan_digest(plan))
        return cls(path, about, ledger)

    def save(self, name: str, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Write a checkpoint, stamped with where the ledger stands."""
        write_tensors(self.path / f"{name}.safetensors", tensors, {**numbers, "ledger": self.ledger.head})

    def load(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read a checkpoint; refuse one that this ledger does not know, or that is ahead of it."""
        tensors, numbers = read_tensors(self.path / f"{name}.safetensors")
        if not isinstance(numbers, dict) or not isinstance(numbers.get("ledger"), str):
            raise FileError(f"{self.path / name}.safetensors is not a checkpoint.")
        paid, step = self.ledger.confirm(numbers["ledger"]), numbers.get("step")
        if not isinstance(step, int) or not 0 <= step <= paid:
            raise LedgerError(
                f"The checkpoint in {self.path} has {step} steps, but only {paid} had been charged when it "
                "was written; it was edited, so nothing can be promised."
            )
        return tensors, numbers


def _check_unused(path: Path) -> None:
    if holds_charges(path):
        raise FileError(f"{path} already holds a run; resume it, or choose another directory.")


def holds_charges(path: Path) -> bool:
    """Whether training may have begun in a directory: its first checkpoint precedes its first charge."""
    return (path / "ledger.jsonl").exists() or (path / "checkpoint.safetensors").exists()


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
