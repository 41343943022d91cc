"""Small sites: a schema, a table, terms, and folders that are made once and copied."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.data import Category, Number, Schema, Target
from tacit.data.records import Records, read_records
from tacit.sites.messages import read_message, write_message
from tacit.sites.options import Training
from tacit.sites.terms import Terms
from tacit.sites.vault import Site, Vault, create_site

COLUMNS = {"age": Number(18, 90), "dose": Number(0, 10), "ward": Category(("A", "B", "C"))}
TARGETS = {
    "binary": Target("ill", "binary", ("no", "yes")),
    "multiclass": Target("ill", "multiclass", ("no", "some", "yes")),
    "regression": Target("ill", "regression", low=-10, high=110),
}
ROUNDS, SPARE = 4, 1


def terms(kind: str = "binary", **changed: Any) -> Terms:
    settings: dict[str, Any] = {"rounds": ROUNDS, "spare": SPARE, "sampling_rate": 0.5, **changed}
    return Terms(Training(**settings), Schema(TARGETS[kind], COLUMNS))


def write_csv(path: Path, rows: int = 240, seed: int = 0, kind: str = "binary") -> Path:
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["patient", "ward", "age", "dose", "name", "ill"])
        for number in range(rows):
            age, dose = rng.randint(18, 90), rng.uniform(0, 10)
            score = (age - 54) / 12 + rng.gauss(0, 1)
            ill = {
                "binary": "yes" if score > 0 else "no",
                "multiclass": "no" if score < -1 else "yes" if score > 1 else "some",
                "regression": f"{age + rng.gauss(0, 3):.1f}",
            }[kind]
            out.writerow([f"P{number // 3}", rng.choice("ABC"), age, f"{dose:.2f}", f"Person {number}", ill])
    return path


def records(tmp_path: Path, seed: int = 0, kind: str = "binary", unit: str | None = None) -> Records:
    return read_records(
        write_csv(tmp_path / f"{kind}-{seed}.csv", seed=seed, kind=kind), terms(kind).schema, unit
    )


_MADE: dict[Any, Path] = {}


def site(
    tmp_path: Path, name: str = "site", *, keep: Path, seed: int = 0, kind: str = "binary", **changed: Any
) -> Path:
    """A folder of a site; equal ones are made once, below ``keep``, because planning takes a second."""
    epsilon, unit = changed.pop("epsilon", 4.0), changed.pop("unit", None)
    key = (keep, seed, kind, epsilon, unit, *sorted(changed.items()))
    if key not in _MADE:
        made = keep / f"made-{len(_MADE)}"
        create_site(
            made,
            terms(kind, **changed),
            records(keep, seed, kind, unit),
            Site(unit),
            epsilon=epsilon,
            delta=1e-5,
        )
        _MADE[key] = made
    return Path(shutil.copytree(_MADE[key], tmp_path / name))


def weights(agreed: Terms, scale: float = 0.0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        name: p.detach() + scale * torch.randn(p.shape, generator=draw)
        for name, p in agreed.build_model().named_parameters()
    }


def question(agreed: Terms, number: Any, at: dict[str, Tensor] | None = None, **changed: Any) -> bytes:
    content = {"kind": "round", "training": agreed.digest, "round": number, **changed}
    return write_message(content, weights(agreed) if at is None else at)


def read(vault: Vault, payload: bytes) -> dict[str, Any]:
    """What a reply says, besides its tensors."""
    shapes = {name: tuple(value.shape) for name, value in weights(vault.terms).items()}
    return read_message(payload, shapes)[0]


def values(agreed: Terms, payload: bytes) -> Tensor:
    shapes = {name: tuple(value.shape) for name, value in weights(agreed).items()}
    tensors = read_message(payload, shapes)[1]
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors)])
