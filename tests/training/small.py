"""A small problem that trains in milliseconds: data, model, plans, optimizers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit import Plan, Trainer
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.support import Support
from tacit.support.support import trainable_parameters
from tacit.training.step import PrivateStep

EXAMPLES, BATCH, EPOCHS = 64, 16, 5
STEPS = EXAMPLES // BATCH * EPOCHS
SEED = 11


def data(examples: int = EXAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(0, 3, (examples,), generator=generator)
    noise = torch.randn(examples, 1, 8, 8, generator=generator, dtype=torch.float64)
    centers = torch.randn(3, 1, 8, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(centers[targets] + noise, targets)


def network(seed: int = 1, *extra: nn.Module) -> nn.Sequential:
    """A CNN of 279 coordinates, in double precision so that two computations of a score rank alike."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2),
            nn.GroupNorm(1, 4),
            nn.Tanh(),
            nn.Conv2d(4, 4, 2),
            *extra,
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16, 8),
            nn.Linear(8, 3),
        ).double()


def plan(method: str = "tp-topk", *, epsilon: float = math.inf, **options: Any) -> Plan:
    if method != "dp-sgd":
        options.setdefault("active_ratio", 0.3)
    settings: dict[str, Any] = {
        "delta": 1e-5,
        "examples": EXAMPLES,
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "accountant": "rdp",
    }
    return make_plan(method, epsilon=epsilon, **{**settings, **options})


def sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.5)


def momentum(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.2, momentum=0.8, weight_decay=0.05)


def adam(named: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(named, lr=0.02, weight_decay=0.05)


def trainer(plan: Plan, model: nn.Module | None = None, **options: Any) -> Trainer:
    settings = {"optimizer": sgd, "seed": SEED, "chunk_size": 5}
    return Trainer(model or network(), data(), cross_entropy, plan, **{**settings, **options})


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable_parameters(model).values()])


def mask(support: Support) -> Tensor:
    return torch.cat([block.mask().flatten() for block in support.values()])


def files(directory: Path) -> dict[str, bytes]:
    """Everything in a directory, to see that nothing has changed."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def nothing_to_learn(model: nn.Module, **options: Any) -> PrivateStep:
    """Steps of a loss without slope: what moves is noise, of deviation 0.5 · 3 · 2 / 4 in a coordinate."""
    return PrivateStep(
        model,
        lambda model, batch: 0.0 * model(batch).sum(1),
        support=Support.all(model),
        clip_norm=2.0,
        noise_multiplier=3.0,
        batch_size=4,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
        **options,
    )
