"""What a trainer of a sharded model does otherwise: its state is in shards, in memory and in checkpoints.

A checkpoint of a sharded model is the ordinary file, with everything that all ranks share, and a folder beside it that
``torch.distributed.checkpoint`` writes in safetensors, each rank its shards. The file names the folder and the digests
of what it holds, and is written after it: it is the checkpoint that counts.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from tacit.distributed.ranks import Ranks
from tacit.distributed.shards import Shards
from tacit.errors import ArgumentError, FileError
from tacit.files import file_digest
from tacit.runs.run_directory import Run, model_digest
from tacit.support import Kind, Support
from tacit.training.open_run import Parts

FOLDER = "checkpoint-shards-"
"""How the names of folders with shards begin."""

_SHARED = ("support", "buffers")

_ELEMENTWISE = (
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "ASGD",
    "Rprop",
)
"""Optimizers that treat every coordinate alone, so that a shard moves as it would in the whole."""


class Sharding:
    """The state of training of a sharded model: what this rank holds of it."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        ranks.check_same("the model (names, shapes and types of parameters)", lambda: model_digest(model))
        self.shards = Shards(model, ranks)

    def check_elementwise(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that would move a shard otherwise than the whole."""
        if type(optimizer) not in [getattr(torch.optim, name) for name in _ELEMENTWISE]:
            raise ArgumentError(
                f"{type(optimizer).__name__} may look at whole parameters, and each process holds a shard of them; use "
                f"one of {', '.join(_ELEMENTWISE)}, or give every process the whole model."
            )

    def part(self, support: Support) -> Support:
        """The active coordinates that this rank holds."""
        return support.part(self.shards.rows, self._ranks.rank)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors of a part of the state, on every rank."""
        return dict(self._ranks.whole(tensors, {key: self.shards.rows[_parameter(key)] for key in tensors}))

    def whole_model(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's ``state_dict`` in main memory, whole; on other ranks than the first nothing."""
        found = {}
        for name, value in self._ranks.whole(dict(self.shards.held.named_parameters()), self.shards.rows):
            if self._ranks.rank == 0:
                found[name] = value.detach()
        if self._ranks.rank:
            return {}
        return self.buffers(model) | {key: found[name] for key, name in self.entries(model).items()}

    def entries(self, model: nn.Module) -> dict[str, str]:
        """The sharded parameter that each entry of the ``state_dict`` is; one that is tied has several entries."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        values = model.state_dict(keep_vars=True).items()
        return {key: names[id(value)] for key, value in values if isinstance(value, DTensor)}

    def buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """What every rank has whole: buffers, and frozen parameters that are not sharded."""
        return {key: value for key, value in model.state_dict().items() if not isinstance(value, DTensor)}

    def save(
        self,
        directory: Path,
        run: Run | None,
        model: nn.Module,
        parts: Parts,
        support: Support,
        about: Mapping[str, Any],
    ) -> None:
        """Every rank writes its shards; then the first writes what all share, and with it makes them count.

        ``run`` is the run directory, on the first rank. ``support`` is this rank's.
        """
        folder = f"{FOLDER}{self._ranks.lead(lambda: uuid.uuid4().hex)}"
        shards, shared, numbers = self.split(parts, support)
        numbers["shards"] |= {
            "folder": folder,
            "digests": self.write(directory / folder, shards),
            "entries": self.entries(model),
        }
        if run is not None:
            run.save(shared, {**about, **numbers})
        self._forget(directory, kept=folder)

    def split(
        self, parts: Parts, support: Support
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        """The state in a form that does not depend on the number of ranks: shards, what all share, and numbers.

        ``support`` is this rank's. Values of active coordinates are put at their places in their parameters' rows.
        """
        shards: dict[str, Tensor] = {}
        shared: dict[str, Tensor] = {}
        scalars: dict[str, float] = {}
        for part, (tensors, _) in parts.items():
            for key, tensor in tensors.items():
                if part in _SHARED:
                    shared[f"{part}:{key}"] = tensor
                elif part == "optimizer" and not tensor.dim():
                    scalars[key] = float(tensor)
                elif part in ("optimizer", "average"):
                    name = key.rpartition("/")[0] if part == "optimizer" else key
                    rows = torch.zeros(support[name].shape, dtype=tensor.dtype, device=tensor.device)
                    support[name].scatter_(rows, tensor)
                    shards[f"{part}:{key}"] = rows
                else:
                    shards[f"{part}:{key}"] = tensor
        # A rank that holds nothing active of a parameter has no state of it, and others may.
        told = self._ranks.told(
            {
                "kinds": {key: [str(t.dtype).removeprefix("torch."), t.dim()] for key, t in shards.items()},
                "scalars": scalars,
                "numbers": {part: numbers for part, (_, numbers) in parts.items()},
            }
        )
        kinds = {key: kind for said in reversed(told) for key, kind in said["kinds"].items()}
        whole = {key: shards[key] if key in shards else self._blank(key, kind) for key, kind in kinds.items()}
        numbers = dict(told[0]["numbers"])
        numbers["optimizer"] = {
            key: value for said in reversed(told) for key, value in said["numbers"]["optimizer"].items()
        }
        scalars = {key: value for said in reversed(told) for key, value in said["scalars"].items()}
        return whole, shared, {"parts": numbers, "shards": {"kinds": kinds, "scalars": scalars}}

    def join(
        self,
        shards: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
        numbers: Mapping[str, Any],
        support: Support,
    ) -> Parts:
        """The state of this rank, whose active coordinates are ``support``, from what ``split`` has made."""
        parts: Parts = {part: ({}, plain) for part, plain in numbers["parts"].items()}
        for full, tensor in [*shards.items(), *shared.items()]:
            part, _, key = full.partition(":")
            if part in ("optimizer", "average"):
                block = support[key.rpartition("/")[0] if part == "optimizer" else key]
                if block.kind is Kind.SILENT:
                    continue
                tensor = block.gather(tensor).clone()
            parts[part][0][key] = tensor
        for key, value in numbers["shards"]["scalars"].items():
            if support[key.rpartition("/")[0]].kind is not Kind.SILENT:
                parts["optimizer"][0][key] = torch.tensor(value)
        return parts

    def write(self, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Every rank writes its shards to a folder that all see; the digests of the files in it."""
        state = {key: self.shards.as_shard(_parameter(key), tensor) for key, tensor in tensors.items()}
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save(state, storage_writer=writer, no_dist=self._ranks.size == 1)
        return self._ranks.lead(lambda: _digests(folder))

    def read(self, folder: Path, numbers: Mapping[str, Any]) -> dict[str, Tensor]:
        """This rank's shards of what ``write`` wrote, by whatever number of ranks."""
        about = numbers["shards"]
        found: dict[str, str] = self._ranks.lead(lambda: _digests(folder))
        if found != about["digests"]:
            raise FileError(f"{folder} is damaged: it does not hold what the checkpoint says.")
        tensors = {key: self._blank(key, kind) for key, kind in about["kinds"].items()}
        state = {key: self.shards.as_shard(_parameter(key), tensor) for key, tensor in tensors.items()}
        try:
            load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=self._ranks.size == 1)
        except (CheckpointException, OSError, ValueError) as error:
            raise FileError(
                f"The shards in {folder} cannot be read: {' '.join(str(error).split())}."
            ) from error
        return {key: shard.to_local() for key, shard in state.items()}

    def _forget(self, directory: Path, kept: str) -> None:
        """Remove the folders of earlier checkpoints."""
        if self._ranks.rank == 0:
            for folder in directory.glob(f"{FOLDER}*"):
                if folder.name != kept:
                    shutil.rmtree(folder, ignore_errors=True)

    def _blank(self, key: str, kind: list[Any]) -> Tensor:
        dtype, dimensions = kind
        own = self.shards.held.get_parameter(_parameter(key))
        return torch.zeros(own.shape[:dimensions], dtype=getattr(torch, dtype), device=own.device)


def _digests(folder: Path) -> dict[str, str]:
    try:
        return {path.name: file_digest(path) for path in sorted(folder.iterdir())}
    except OSError as error:
        raise FileError(
            f"{folder} cannot be read ({error.strerror}); the run directory of a sharded model must be seen by all "
            "processes."
        ) from error


def _parameter(key: str) -> str:
    """The parameter whose rows something in the state follows: model:a.b, optimizer:a.b/momentum, scores:seen/a.b."""
    part, _, rest = key.rpartition(":")
    if part == "scores" or (not part and "/" in rest):
        return rest.partition("/")[2]
    return rest.rpartition("/")[0] if part == "optimizer" else rest
